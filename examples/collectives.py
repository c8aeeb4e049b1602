"""Collectives on tensors and nested structures, waiting or not.

torchrun --nproc-per-node 2 examples/collectives.py
"""

import torch

import gradweave as gw

gw.init()
rank, size = gw.rank(), gw.size()
total = sum(range(size))

assert gw.allreduce(torch.tensor([float(rank)])).item() == total
means = gw.allreduce({"loss": torch.tensor(float(rank)), "pair": [torch.ones(2), torch.zeros(3)]}, op="average")
assert means["loss"].item() == total / size

pending = gw.allreduce(torch.full((4,), float(rank)), op="max", async_op=True)
# ... other work here ...
assert pending.wait()[0].item() == size - 1

gathered = gw.allgather(torch.full((rank + 1, 2), rank))  # uneven first dimensions are allowed
assert gathered.shape == (size * (size + 1) // 2, 2)

from_root = torch.tensor([rank + 7])
gw.broadcast(from_root, root=0)  # in place
assert from_root.item() == 7

shard = gw.reduce_scatter(torch.arange(2.0 * size))
assert shard.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
assert gw.alltoall(torch.full((size,), rank)).tolist() == list(range(size))

gw.new_group("first", [0])  # every rank makes the group; only its members use it
if rank == 0:
    assert gw.allreduce(torch.ones(1), group="first").item() == 1
gw.barrier()
if rank == 0:
    print(f"collectives agree on {size} ranks")
gw.shutdown()
