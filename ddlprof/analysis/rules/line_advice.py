"""Advice for a line of the script by what it does, where data is read or drawn."""

from __future__ import annotations

from ddlprof.model import source_locations

AT_LINE = {
    source_locations.OPENS: "open the file once (for each worker, the first time that it is needed), and keep it open",
    source_locations.LISTS: "a tensor of one array, not of a list: torch.from_numpy(np.stack(arrays)), or numbers "
    "computed as an array",
    source_locations.DRAWS: "draw without permuting all there is: np.random.default_rng().choice(n, k, replace=False), "
    "or np.random.randint where a number may come twice",
    source_locations.TOKENISES: "tokenise once, before the training, and keep the numbers",
    source_locations.DECODES: "decode and resize once, before the training, and keep the small images",
    source_locations.TABLES: "take the columns out of the table once, in __init__ or before the loop: "
    "table[column].to_numpy(), and rows that are searched for as groups: dict(list(table.groupby(key)))",
    source_locations.QUERIES: "read all rows once into an array, in __init__ or before the training; else all rows of "
    "a batch in one query (__getitems__), and an index on the column that is searched (CREATE INDEX)",
    source_locations.PARSES: "parse once, before the training, and keep arrays (np.save, Parquet, Arrow)",
    source_locations.SEARCHES: "list the files once, in __init__, and keep the list",
    source_locations.READS: "if it is one file for all samples: read it once, in __init__, and keep its lines, or only "
    "where each begins (file.tell()), to seek to the one that is asked for; if each sample has its own: read all once, "
    "before the training, into one file or array",
    source_locations.UNPACKS: "if it is compressed: unpack once, before the training, and keep the data as they are "
    "used (np.save in place of np.savez_compressed; of HDF5 and Zarr a whole chunk is unpacked for one row of it)",
    source_locations.FINDS: "a dict that is made once ({value: n for n, value in enumerate(values)}) in place of a "
    "search through a list (list.index, in)",
    source_locations.COPIES: "copy only what is changed: dict(record) or copy.copy in place of copy.deepcopy, numbers "
    "in arrays",
    source_locations.ASKS: "arrays or tensors in shared memory (tensor.share_memory_(), np.memmap) in place of a dict "
    "or list of multiprocessing.Manager, whose process is asked for each sample",
    source_locations.PER_SAMPLE: "take whole batches by their indices: DataLoader(data, batch_size=None, "
    "sampler=BatchSampler(RandomSampler(data), N, False)), or __getitems__ in the data set",
}
"""Words of `ddlprof.model.source_locations` with the advice."""
