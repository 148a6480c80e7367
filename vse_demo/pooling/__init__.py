"""From a set of vectors to one: (B, N, D) and mask -> (B, D)."""

from vse_demo.pooling.adpool import AdPool, PoolTrace
from vse_demo.pooling.aggregators import (
    DSRN,
    GCN,
    GPO,
    LIP,
    POOLINGS,
    AdaPool,
    GraphLayer,
    SelfAttention,
    Seq2Seq,
    SoftPool,
    build_pooling,
    manual,
)
from vse_demo.pooling.functional import (
    masked_mean,
    masked_softmax,
    real_ranks,
    real_rows,
    soft_maximum,
    softmax_sum,
    sort_rows,
    sort_with_order,
    weighted_sum,
)
from vse_demo.pooling.rank import RankPool

__all__ = [
    "DSRN",
    "GCN",
    "GPO",
    "LIP",
    "POOLINGS",
    "AdPool",
    "AdaPool",
    "GraphLayer",
    "PoolTrace",
    "RankPool",
    "SelfAttention",
    "Seq2Seq",
    "SoftPool",
    "build_pooling",
    "manual",
    "masked_mean",
    "masked_softmax",
    "real_ranks",
    "real_rows",
    "soft_maximum",
    "softmax_sum",
    "sort_rows",
    "sort_with_order",
    "weighted_sum",
]
