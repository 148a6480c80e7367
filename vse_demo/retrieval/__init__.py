"""Search: images and captions as unit vectors, found by sentences and images; stores that keep them."""

from vse_demo.retrieval.address import is_database, load_store, open_store, stored_models
from vse_demo.retrieval.entries import Entry, Hit, Where
from vse_demo.retrieval.exact import top_k
from vse_demo.retrieval.gallery import Gallery, read_models
from vse_demo.retrieval.query import Query, encode_query
from vse_demo.retrieval.replica import replicate
from vse_demo.retrieval.rerank import CANDIDATES, Comparer, rerank
from vse_demo.retrieval.store import Store
from vse_demo.retrieval.sync import BATCH, Report, SyncReport, sync_stores

__all__ = [
    "BATCH",
    "CANDIDATES",
    "Comparer",
    "Entry",
    "Gallery",
    "Hit",
    "Query",
    "Report",
    "Store",
    "SyncReport",
    "Where",
    "encode_query",
    "is_database",
    "load_store",
    "open_store",
    "read_models",
    "replicate",
    "rerank",
    "stored_models",
    "sync_stores",
    "top_k",
]
