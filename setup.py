"""What pyproject.toml cannot say: the core in C, which is left out wherever it cannot be built."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from zlib import crc32

from setuptools import Extension, setup

# The stable ABI has no free-threaded builds of Python; these and machines without a compiler use the core in Python.
WITHOUT = os.environ.get("DDLPROF_PYTHON_CORE") or sysconfig.get_config_var("Py_GIL_DISABLED")
SOURCE = "ddlprof/collect/_core.c"
CORE = Extension(
    "ddlprof.collect._core",
    [SOURCE],
    define_macros=[("SOURCE", f"{crc32((Path(__file__).parent / SOURCE).read_bytes())}LL")],
    py_limited_api=True,
    optional=True,
    extra_compile_args=["-g0"],
    extra_link_args=["-pthread"] if sys.platform == "linux" else [],
)

setup(
    ext_modules=[] if WITHOUT else [CORE],
    options={} if WITHOUT else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
