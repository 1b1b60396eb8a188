"""Prices of several clouds that others publish daily: the catalogue of dstack's gpuhunt, for which nobody signs in.

Each cloud has `CLOUD/version` (such as `20261128-412`) and `CLOUD/VERSION/catalog.zip`, which holds `CLOUD.csv`. The
library itself waits and reads without limits, and only logs which cloud failed, so the files are read here. Names of
machines and regions become those of our catalogue; facts of machines that it knows are left alone.
"""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from fnmatch import fnmatchcase
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

from ddlprof.instance_catalog.catalog import Catalog
from ddlprof.instance_catalog.clouds import ANY_REGION, cloud_named
from ddlprof.instance_catalog.names import matching, parse
from ddlprof.instance_catalog.records import Gpu, InstanceType
from ddlprof.instance_catalog.refresh.providers.base import Allowance, CallFailed, TypeAnswer

URL = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v3"
"""Where it is published; `GPUHUNT_CATALOG_URL` names another place, as it does for gpuhunt."""
_SAME_NAME = ("aws", "azure", "cloudrift", "gcp", "nebius", "oci", "runpod", "verda")
CLOUDS: Mapping[str, str] = {name: name for name in _SAME_NAME} | {"lambda": "lambdalabs"}
"""gpuhunt's names of the clouds by ours. It asks nine others only when it is used, most of them with an account."""
TIMEOUT_S: float = 15
"""The longest wait in seconds between two parts of an answer."""
_DAMAGE = (csv.Error, zipfile.BadZipFile, zlib.error, EOFError)
_MEMORY_TOLERANCE = 0.1
"""Less is a share of a GPU."""
_CHUNK_BYTES = 2**16
_VERSION = re.compile(r"(\d{8})(-\d+)?")
_OTHER_PRODUCTS = {"runpod-cluster", "gcp-dws-calendar-mode"}
"""Flags of rows that are neither on demand nor spot: clusters of several machines, and reservations."""
_NEW_NAME = re.compile(r"[\w.-]{1,80}")
"""Names of N1 machines with any GPU that fits have a `+`: they are not listed one by one."""
_SPOT = {"True": True, "False": False}
_ARCHITECTURES = {"x86": "x86_64", "arm": "arm64"}
_GIB_PER_UNIT = {"lambda": 1 / 1.074}
"""Where gpuhunt counts a host's memory in GB."""


class Offer(NamedTuple):
    """A row of the published catalogue, with its machine and region named as in ours."""

    machine: TypeAnswer
    region: str
    spot: bool
    usd_per_hour: float


class Gpuhunt:
    """The published part about one cloud. `read` it first."""

    def __init__(self, cloud: str, names: Sequence[str], now: datetime) -> None:
        """`names`: of the machines to look at, which may contain `*` and `?`."""
        self.name = cloud
        self.sources: Mapping[str, str] = {}
        self.as_of = ""
        self.types: dict[str, TypeAnswer] = {}
        """The machines that our catalogue lacks and that are described well enough."""
        self.prices: dict[str, dict[bool, dict[str, float]]] = {}
        """USD per hour by region, whether spot, and machine."""
        self.left_out: set[str] = set()
        """The other machines that our catalogue lacks, and those of which it knows other GPUs."""
        self._names = names
        self._now = now

    def read(self, catalog: Catalog, regions: Sequence[str], allowance: Allowance) -> None:
        """Reads the prices in `regions`, or else in those that the catalogue knows.

        Raises CallFailed where they cannot be had.
        """
        theirs = CLOUDS[self.name]
        base = f"{os.environ.get('GPUHUNT_CATALOG_URL', URL).rstrip('/')}/{theirs}"
        with _explained(f"{base}/version") as url:
            version = _get(url, allowance).decode("utf-8").strip()
            match = _VERSION.fullmatch(version)
            if match is None:
                raise ValueError(f"no date in {version[:40]!r}")
            published = datetime.strptime(match[1], "%Y%m%d").date()
        self.as_of = min(published, self._now.date()).isoformat()
        self.sources = dict.fromkeys(("types", "on_demand", "spot"), f"gpuhunt {version}")
        with _explained(f"{base}/{version}/catalog.zip") as url:
            wanted = set(regions or (*catalog.regions(self.name), ANY_REGION))
            self._take(_rows(_get(url, allowance), f"{theirs}.csv", allowance), catalog, wanted)

    def _take(self, rows: Iterable[Mapping[str, str]], catalog: Catalog, wanted: set[str]) -> None:
        """Raises ValueError if no row can be read. Single damaged rows are left out, as gpuhunt does."""
        ours = {row.instance_type.lower(): row for row in catalog.instances if row.cloud == self.name}
        damage: Exception | None = None
        for row in rows:
            try:
                offer = _offer(self.name, row, ours, catalog.gpus)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                damage = error
                self.left_out.add(str(row.get("instance_name")))
                continue
            if offer is None or offer.region not in wanted:
                continue
            known = ours.get(offer.machine.instance_type.lower())
            name = known.instance_type if known else offer.machine.instance_type
            if not any(fnmatchcase(name, each) for each in self._names):
                continue
            if not (_same_gpus if known else _is_described)(offer.machine, known, catalog.gpus):
                self.left_out.add(name)
                continue
            if known is None:
                self.types.setdefault(name, offer.machine)
            here = self.prices.setdefault(offer.region, {False: {}, True: {}})[offer.spot]
            here[name] = min(offer.usd_per_hour, here.get(name, offer.usd_per_hour))
        if damage is not None and not self.prices:
            raise ValueError(f"no row could be read: {damage!r}")


def _offer(cloud: str, row: Mapping[str, str], ours: Mapping[str, InstanceType], gpus: Sequence[Gpu]) -> Offer | None:
    """The row as ours; None for another product than a machine with GPUs by the hour.

    Raises AttributeError, KeyError, TypeError or ValueError for a damaged row.
    """
    name, region, count, gpu_name = row["instance_name"], row["location"], int(row["gpu_count"]), row["gpu_name"]
    if not count or row["gpu_vendor"] not in ("", "nvidia", "amd") or _OTHER_PRODUCTS & set(row["flags"].split()):
        return None
    if cloud == "gcp":
        region = region.rpartition("-")[0]  # of the zone
        name += f"+{count}x{gpu_name.lower()}" if name.startswith("n1-") else ""
    elif cloud == "nebius":
        name = name.replace(" ", "_")
    elif cloud == "runpod":
        if "-" not in region:
            return None  # a country: the machines of private persons
        models = [gpu.gpu_model for gpu in matching(name, gpus)][:1]  # pods have the names of their GPUs
        same = (each.instance_type for each in ours.values() if each.gpus == count and each.gpu_model in models)
        name = next(same, f"{count}x_{name.removeprefix('NVIDIA ').replace(' ', '-')}_SECURE")
    form = parse(name).form
    machine = TypeAnswer(
        instance_type=name,
        family=re.split(r"[._ -]", name)[0],
        gpu_name=gpu_name if form in gpu_name.lower() else f"{gpu_name} {form}",
        gpus=count,
        gpu_fraction=1.0,
        gpu_memory_gib=float(row["gpu_memory"]),
        vcpus=int(row["cpu"]),
        memory_gib=round(float(row["memory"]) * _GIB_PER_UNIT.get(cloud, 1.0), 1),
        cpu_arch=_ARCHITECTURES[row["cpu_arch"] or "x86"],
    )
    if cloud_named(cloud).reference_region == ANY_REGION:
        region = ANY_REGION
    return Offer(machine, region, _SPOT[row["spot"]], float(row["price"]))


def _same_gpus(machine: TypeAnswer, known: InstanceType | None, gpus: Sequence[Gpu]) -> bool:
    models = {gpu.gpu_model for gpu in matching(machine.gpu_name, gpus)}
    return known is not None and machine.gpus == max(known.gpus, 1) and (not models or known.gpu_model in models)


def _is_described(machine: TypeAnswer, known: InstanceType | None, gpus: Sequence[Gpu]) -> bool:
    """Whether it is clear which GPU of ours it has: where no name has the form, SXM or PCIe, it may be two."""
    named = matching(machine.gpu_name, gpus, machine.gpu_memory_gib)
    if len(named) != 1 or not _NEW_NAME.fullmatch(machine.instance_type):
        return False
    return abs(machine.gpu_memory_gib / (named[0].memory_gib or 1) - 1) <= _MEMORY_TOLERANCE


def _rows(archive: bytes, name: str, allowance: Allowance) -> Iterator[dict[str, str]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        allowance.read(files.getinfo(name).file_size)  # no more is unpacked
        with files.open(name) as file:
            yield from csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))


def _get(url: str, allowance: Allowance) -> bytes:
    parts = []
    with urlopen(url, timeout=TIMEOUT_S) as answer:
        while chunk := answer.read1(_CHUNK_BYTES):
            allowance.read(len(chunk))
            allowance.arrives()
            parts.append(chunk)
    return b"".join(parts)


@contextmanager
def _explained(url: str) -> Iterator[str]:
    """Turns what urllib, zipfile and csv raise, and answers of another shape, into CallFailed."""
    try:
        yield url
    except HTTPError as error:
        error.close()
        raise CallFailed(f"{url} answered {error.code} {error.reason}: try again later") from None
    except TimeoutError:
        raise CallFailed(f"no answer from {url}: check the network and proxy") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise CallFailed(f"no connection to {url} ({reason}): check the network and proxy") from None
    except (LookupError, RuntimeError, TypeError, ValueError, *_DAMAGE) as error:
        raise CallFailed(f"the answer of {url} was not understood ({error!r})") from None
