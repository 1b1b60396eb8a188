"""What this room adds to ddlprof: `ddlprof cluster` and `ddlprof elastic`."""

from __future__ import annotations

from ddlprof.registry import Command, Extension

EXTENSION = Extension(
    group="Plan",
    commands={
        "cluster": Command(
            "Try scheduling policies on traces of jobs.",
            [
                "cluster import sacct history.txt -o jobs.csv",
                "cluster simulate --trace jobs.csv --cluster 8x8 --policy fifo,srtf",
            ],
            "ddlprof.extensions.cluster.cli.cluster",
        ),
        "elastic": Command(
            "Share GPUs out among jobs that can run on more or fewer.",
            ["elastic --jobs jobs.csv --gpus 16", "elastic --jobs jobs.csv --gpus 16 --simulate -o shares.csv"],
            "ddlprof.extensions.cluster.cli.elastic",
        ),
    },
    examples={
        "cluster simulate": [
            "cluster simulate --trace jobs.csv --cluster 8x8 --policy fifo,srtf",
            "cluster simulate --trace jobs.csv --cluster 8x8 --policy las -o page.html -o tables/",
        ],
        "cluster import": [
            "cluster import sacct history.txt -o jobs.csv",
            "cluster import csv queue.csv --columns submit=Queued,gpus=GPUs --gpus 64 -o - -o jobs.csv",
        ],
        "cluster advise": [
            "cluster advise RUN --instance p3.16xlarge --gpus 16",
            "cluster advise RUN --gpus 16 --remaining 12h --emit slurm",
        ],
    },
    names={"ddlprof.cluster": "ddlprof.extensions.cluster"},
)
