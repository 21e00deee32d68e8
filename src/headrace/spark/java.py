"""Find Java, or say in one sentence what to do about its absence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.errors import EnvironmentMissingError

_NEEDED = 17
_FIX = "install OpenJDK 17 or 21 (for example 'apt-get install openjdk-17-jre-headless') or set JAVA_HOME to one"


def find_java() -> Path:
    """The ``java`` that Spark will use; raises EnvironmentMissingError with the fix."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.exists():
            raise EnvironmentMissingError(f"JAVA_HOME is {home}, but there is no bin/java in it: {_FIX}.")
    else:
        found = shutil.which("java")
        if found is None:
            raise EnvironmentMissingError(f"Spark needs Java {_NEEDED} or newer, and none was found: {_FIX}.")
        java = Path(found)
    version = java_version(java)
    if version < _NEEDED:
        raise EnvironmentMissingError(f"Spark needs Java {_NEEDED} or newer, but {java} is Java {version}: {_FIX}.")
    return java


def java_version(java: Path) -> int:
    """The major version that a ``java`` reports."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise EnvironmentMissingError(f"{java} cannot be run ({error}): {_FIX}.") from error
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if match is None:
        raise EnvironmentMissingError(f"{java} did not tell its version: {_FIX}.")
    return int(match.group(1))
