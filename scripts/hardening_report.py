"""The table of what was tried against this program, from the lists of cases themselves and the last load test.

python scripts/hardening_report.py    # prints it; a test compares docs/safety.md with it
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import hostile  # noqa: E402
import test_fuzz  # noqa: E402
import test_hostile_faults as faults  # noqa: E402
import test_hostile_files as files  # noqa: E402
import test_hostile_page as page  # noqa: E402


def table() -> str:
    load: dict[str, Any] = json.loads((ROOT / "tests" / "load.json").read_text())
    fuzz: dict[str, Any] = json.loads((ROOT / "tests" / "fuzz.json").read_text())
    kinds = {kind: sum(item.refused is not None for item in getattr(hostile, kind)) for kind in ("IMAGES", "TEXTS")}
    answered, refused = sum(load["answered"].values()), sum(load["refused"].values())
    kills = ", ".join(f"{verb} {count}" for verb, count in faults.KILLS.items())
    memory = load["memory_mb"]
    rows = {
        "pictures": f"{len(hostile.IMAGES)}; {kinds['IMAGES']} are refused with a reason, the others answered",
        "sentences": f"{len(hostile.TEXTS)}; {kinds['TEXTS']} refused; {len(hostile.MARKUP)} markup, in Chromium too",
        "files": f"{len(files.FILES)} kinds, {len(hostile.DAMAGES)} damages each: refused, or the answer is as before",
        "requests": f"{len(page.WAYS)} ways to {len(page.SECRETS)} files, {len(page.OTHER_ROUTES)} routes: closed",
        "kills (`kill -9`)": f"up to {sum(faults.KILLS.values())} in a test run ({kills}): all went on",
        "users at once": f"{load['users']} for {load['seconds']} s on {load['cores']} cores: {answered:,} answered, "
        f"{refused:,} bad ones refused, {len(load['wrong'])} wrong; p50 {load['p50']} s, p95 {load['p95']} s; "
        f"memory {memory['first']:,} → {memory['last']:,} MB",
        "fuzzing": f"{len(test_fuzz.TRIES)} public names, up to {test_fuzz.EXAMPLES} examples each; file readers, "
        f"guided by coverage: {fuzz['runs']:,} inputs in {fuzz['seconds'] / 60:.0f} minutes",
    }
    return "\n".join(["| tried | |", "|---|---|", *(f"| {what} | {how} |" for what, how in rows.items())])


if __name__ == "__main__":
    print(table())
