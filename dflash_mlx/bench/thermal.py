"""Reads the machine's temperature or thermal limits, if the system reports them."""

import subprocess
import sys
from pathlib import Path

_ZONES = Path("/sys/class/thermal")


def thermal_state() -> str | None:
    """Return the system's report on temperature, or None."""
    if sys.platform == "darwin":
        return _macos()
    found = []
    for file in sorted(_ZONES.glob("thermal_zone*/temp")):
        try:
            found.append(int(file.read_text()) / 1000)
        except (OSError, ValueError):
            continue
    return f"{max(found):.0f} degrees Celsius" if found else None


def _macos() -> str | None:
    """Return the thermal limits that `pmset` reports; it needs no privileges."""
    try:
        result = subprocess.run(
            ["pmset", "-g", "therm"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    return "; ".join(lines) or None
