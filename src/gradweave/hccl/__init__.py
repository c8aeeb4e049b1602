"""HCCL's names on Gradweave: with `from gradweave.hccl.` for `from hccl.` the calls of a script keep their meaning."""
