"""How a segment is reduced: dense, ordered, through another dtype, through a user's hook, sparse."""

from gradweave.reduce.base import Message, Pending, Reducer
from gradweave.reduce.cast import Cast
from gradweave.reduce.dense import Dense
from gradweave.reduce.hook import Bucket, CommHook, FuturePending
from gradweave.reduce.ordered import Ordered

__all__ = ["Bucket", "Cast", "CommHook", "Dense", "FuturePending", "Message", "Ordered", "Pending", "Reducer"]
