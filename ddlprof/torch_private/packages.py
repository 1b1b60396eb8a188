"""Private packages of torch whose functions issue collectives. One that is missing here does no harm."""

from __future__ import annotations

from ddlprof.torch_private.names import PrivateName

_LINE = "no advice says that it issues collectives"
NAMES = (
    PrivateName(
        "torch.distributed.fsdp:_fully_shard", "tells that fully_shard issues a collective", _LINE,
        since="2.6", needs="distributed",
    ),
    PrivateName("torch.nn.modules:_functions", "tells that SyncBatchNorm issues a collective", _LINE),
)  # fmt: skip

FULLY_SHARD = ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp")
REPLICATE = "torch.distributed._composable.replicate"
SYNC_NORM = "torch.nn.modules._functions"
DISTRIBUTED_TENSOR = "torch.distributed._tensor"
COMPILED = ("torch._dynamo", "torch._inductor", "torch._functorch")
