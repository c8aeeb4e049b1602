"""The analysis as a terminal table, an HTML page, a Chrome trace or TensorBoard scalars; all from one `summary_dict`."""

from gradweave.trace.reports.chrome import write_chrome
from gradweave.trace.reports.data import summary_dict
from gradweave.trace.reports.html import write_report
from gradweave.trace.reports.tensorboard import require_tensorboard, write_scalars
from gradweave.trace.reports.terminal import print_report

__all__ = ["print_report", "require_tensorboard", "summary_dict", "write_chrome", "write_report", "write_scalars"]
