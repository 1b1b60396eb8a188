"""The published catalogue of gpuhunt as a server on this machine gives it, and rows in its form."""

from __future__ import annotations

import csv
import io
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COLUMNS = (
    "instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot", "disk_size",
    "gpu_vendor", "flags", "cpu_arch", "provider_data",
)  # fmt: skip
VERSION = "20260820-412"


def row(name: str, location: str, price: object, gpu: str, gpu_memory: float | str, **more: object) -> dict[str, str]:
    """A row as `gpuhunt` writes it: one GPU, on demand, if `more` says nothing else."""
    values = {
        "instance_name": name, "location": location, "price": price, "cpu": 8, "memory": 64.0, "gpu_count": 1,
        "gpu_name": gpu, "gpu_memory": gpu_memory, "spot": False, "disk_size": "", "gpu_vendor": "nvidia", "flags": "",
        "cpu_arch": "x86", "provider_data": "{}", **more,
    }  # fmt: skip
    return {column: str(values[column]) for column in COLUMNS}


CLOUDS: Mapping[str, Sequence[Mapping[str, str]]] = {
    "aws": [
        row("p5.48xlarge", "us-east-1", 55.04, "H100", 80.0, gpu_count=8),
        row("p5.48xlarge", "us-east-1", 22.0, "H100", 80.0, gpu_count=8, spot=True),
        row("g6.xlarge", "ap-south-1", 0.9, "L4", 24.0),
        row("m5.large", "us-east-1", 0.096, "", "", gpu_count=0, gpu_vendor=""),
    ],
    "azure": [row("Standard_ND96isr_H100_v5", "eastus", 98.32, "H100", 80.0, gpu_count=8)],
    "cloudrift": [row("rtx49-8c-nr.1", "us-east-nc-nr-1", 0.39, "RTX4090", 24.0)],
    "gcp": [
        row("n1-standard-8", "us-central1-a", 0.73, "T4", 16.0),
        row("n1-standard-8", "us-central1-b", 0.71, "T4", 16.0),
        row("n1-highmem-8", "us-central1-a", 0.8, "T4", 16.0),
        row("a3-highgpu-8g", "us-central1-a", 2.0, "H100", 80.0, gpu_count=8, flags="gcp-dws-calendar-mode"),
        row("ct6e-standard-1t", "us-central1-a", 2.7, "v6e", 32.0, gpu_vendor="google"),
    ],
    "lambdalabs": [
        row("gpu_8x_h100_sxm5", "us-west-1", 23.92, "H100", 80.0, gpu_count=8),
        row("gpu_1x_gh200", "us-east-3", 1.49, "GH200", 96.0, memory=464 * 1.074, cpu_arch="arm", flags="lambda-arm"),
    ],
    "nebius": [row("gpu-h100-sxm 8gpu-128vcpu-1600gb", "eu-north1", 23.6, "H100", 80.0, gpu_count=8)],
    "oci": [row("BM.GPU.H100.8", "eu-frankfurt-1", 80.0, "H100", 80.0, gpu_count=8)],
    "runpod": [
        row("NVIDIA A100-SXM4-80GB", "US-KS-2", 5.96, "A100", 80.0, gpu_count=4),
        row("NVIDIA H100 80GB HBM3", "EU-RO-1", 2.69, "H100", 80.0),
        row("NVIDIA H100 80GB HBM3", "RO", 1.99, "H100", 80.0),
        row("NVIDIA H100 80GB HBM3", "EU-RO-1", 1.5, "H100", 80.0, flags="runpod-cluster"),
    ],
    "verda": [row("8H100.80S.176V", "FIN-01", 18.32, "H100", 80.0, gpu_count=8)],
}
"""What is published, by gpuhunt's names of the clouds."""


def archive(cloud: str, rows: Sequence[Mapping[str, str]]) -> bytes:
    """`catalog.zip` of one cloud."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr(f"{cloud}.csv", text.getvalue())
    return packed.getvalue()


def published(clouds: Mapping[str, Sequence[Mapping[str, str]]] = CLOUDS, version: str = VERSION) -> dict[str, bytes]:
    """The files by path."""
    files = {f"/v3/{cloud}/version": f"{version}\n".encode() for cloud in clouds}
    return files | {f"/v3/{cloud}/{version}/catalog.zip": archive(cloud, rows) for cloud, rows in clouds.items()}


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[str]:
    """The address of a server that has these files; what it lacks is 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v3"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
