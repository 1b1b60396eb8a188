"""Forms by which a token is known wherever it stands: those of a maintained list, and those that it lacks.

`token_shapes.json` names its source and licence; `scripts/lists/token_shapes.py` writes it anew.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

LISTED = Path(__file__).with_name("token_shapes.json")
_MORE = (
    r"(?:AKIA|ASIA)[A-Z0-9]{12,}",  # AWS
    r"AIza[\w-]{16,}|ya29\.[\w-]{10,}|1//0[\w-]{20,}|GOCSPX-[\w-]{16,}",  # Google
    r"hf_(?:[A-Za-z]*\d[A-Za-z0-9]{7,}|[A-Za-z0-9]{16,})|api_org_[A-Za-z0-9]{16,}",  # Hugging Face
    r"sk-(?:[A-Za-z0-9]{1,12}-){0,3}\w{16,}[\w-]*|sk-(?:ant|proj|svcacct|or)-[\w-]{8,}",  # OpenAI and its like
    r"(?:gh[pousr]_|github_pat_)\w{8,}|gl(?:pat|agent|cbt|dt|ffct|ft|imt|oas|ptt|rt|soat)-[\w-]{8,}",  # GitHub, GitLab
    r"(?:xox[a-z]|xapp)-[\w-]{10,}",  # Slack
    r"eyJ[\w+/=-]{16,}(?:\.[\w=-]*)*",  # JSON in base64: JSON web tokens, Neptune
    r"SG\.[\w-]{10,}\.[\w-]{10,}",  # SendGrid
    r"(?:npm_|dckr_pat_|r8_|gsk_|fw_|xai-|nvapi-|pplx-|csk-|pcsk_|tgp_v1_|lsv2_[a-z]{2}_|wandb_v1_)[\w-]{16,}",
    r"do[a-z]_v1_\w{8,}|dapi[0-9a-f]{24,}|hv[sb]\.[\w-]{16,}",  # DigitalOcean, Databricks, Vault
    r"(?:[sr]k|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,}",  # Stripe
    r"[\w~.-]{3}\dQ~[\w~.-]{24,}",  # Azure's client secrets
    r"(?:shp(?:at|ca|pa|ss)|sbp|gls[ac]|glc|figd|ntn|lin_api|dp\.[a-z]{2,6}|sntry[su]|ph[cx]|rnd|tfp|pul|key)[-_.][\w-]{24,}",
    r"PMAK-[\w-]{24,}|NRAK-[A-Z0-9]{20,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}|AT(?:ATT|CTT|BB)[\w=-]{20,}",
)
_REST = r"[\w.+=~-]*"
"""A token is hidden to its end, also where its shape tells only how it begins."""


def token_pattern() -> re.Pattern[str]:
    """One pattern for all forms; where the list cannot be read, for those that it lacks."""
    listed: dict[str, list[str]] = {}
    with suppress(OSError, ValueError):
        listed = json.loads(LISTED.read_text(encoding="utf-8"))["shapes"]
    shapes = [*_MORE, *(shape for shapes in listed.values() for shape in shapes)]
    return re.compile(f"(?<![A-Za-z0-9])(?:{'|'.join(shapes)}){_REST}")
