"""Run a command on every host of an emulated cluster.

    python -m benchmarks.lab --hosts 4 --rate 800mbit -- python train.py

The ranks find torchrun's variables; rank 0's output is shown.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.lab.cluster import LabError, cluster


def main() -> int:
    """Parse, make the cluster, run, remove it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="800mbit", help='of each link, as tc writes it; "" for no limit')
    parser.add_argument("--ranks", type=int, default=1, help="ranks on each host")
    parser.add_argument("--timeout", type=float, default=900.0, help="s")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("no command was given; put it behind --")
    try:
        with cluster(arguments.hosts, arguments.rate, arguments.ranks) as made:
            print(made.run(command, timeout_s=arguments.timeout), end="")
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
