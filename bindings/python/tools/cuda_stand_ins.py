#!/usr/bin/env python3
"""Makes a CUDA wheel of torch importable on a machine without CUDA's libraries, for tests on the CPU.

    python cuda_stand_ins.py SITE_PACKAGES

Where an index offers only the CUDA wheel, its dependencies are gigabytes that a test on the CPU never uses. This builds
stand-ins for them, beside torch's own libraries: one library that holds every missing symbol (its functions report that
there is no device), and for each missing library one that refers to it. Needs gcc and readelf.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ABSENT = re.compile(r"lib(cu\w+|nccl|nvrtc|nvshmem\w*|nvJitLink|nvToolsExt|nvtx\w*)\.so")
HOLDER = "libkolo_cuda_stand_in.so"
#: cudaErrorNoDevice.
NO_DEVICE = 100
#: Libraries, and prefixes of symbols, that the system and the interpreter supply.
SYSTEM = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libstdc++.so.6", "libgcc_s.so.1",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libutil.so.1")
PRESENT = ("Py", "_Py", "GOMP_", "omp_")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted_libraries(library: Path) -> set[str]:
    found = re.findall(r"\(NEEDED\).*\[(.+?)\]", output("readelf", "-dW", str(library)))
    return {name for name in found if ABSENT.match(name)}


def symbols(library: Path) -> tuple[dict[str, str], set[str]]:
    """The undefined symbols with their kinds, and the defined symbols."""
    undefined: dict[str, str] = {}
    defined: set[str] = set()
    for line in output("readelf", "-W", "--dyn-syms", str(library)).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        kind, binding, place, name = fields[3], fields[4], fields[6], fields[7].partition("@")[0]
        if place != "UND":
            defined.add(name)
        elif binding != "WEAK" and name:
            undefined[name] = kind
    return undefined, defined


def source(missing: dict[str, str]) -> str:
    """The stand-in as assembly, where a name needs no type."""
    answer = {"x86_64": f"mov ${NO_DEVICE}, %eax", "aarch64": f"mov w0, #{NO_DEVICE}"}[os.uname().machine]
    lines = ['.section .note.GNU-stack,"",%progbits']
    for name, kind in sorted(missing.items()):
        if kind == "OBJECT":
            lines.append(f".data\n.globl {name}\n.type {name}, %object\n.size {name}, 64\n{name}: .zero 64")
        else:
            lines.append(f".text\n.globl {name}\n.type {name}, %function\n{name}: {answer}\n ret")
    return "\n".join(lines) + "\n"


def main() -> None:
    folder = Path(sys.argv[1]) / "torch" / "lib"
    libraries = [path for path in folder.glob("*.so*") if path.is_file() and not ABSENT.match(path.name)]
    libraries = [path for path in libraries if path.name != HOLDER]
    wanted: set[str] = set()
    undefined: dict[str, str] = {}
    defined: set[str] = set()
    for library in libraries:
        wanted |= wanted_libraries(library)
        theirs, ours = symbols(library)
        undefined.update(theirs)
        defined |= ours
    for name in SYSTEM:
        path = Path(output("gcc", f"-print-file-name={name}").strip())
        if path.exists():
            defined |= symbols(path)[1]
    missing = {n: kind for n, kind in undefined.items() if n not in defined and not n.startswith(PRESENT)}
    with tempfile.TemporaryDirectory() as temporary:
        assembly = Path(temporary) / "missing.s"
        assembly.write_text(source(missing))
        output("gcc", "-shared", "-nostdlib", "-o", str(folder / HOLDER), str(assembly), f"-Wl,-soname,{HOLDER}")
    for name in sorted(wanted):
        output("gcc", "-shared", "-nostdlib", "-x", "c", os.devnull, "-o", str(folder / name), f"-Wl,-soname,{name}",
               "-Wl,--no-as-needed", f"-L{folder}", f"-l:{HOLDER}", "-Wl,-rpath,$ORIGIN")
    print(f"{len(wanted)} stand-ins for {len(missing)} symbols in {folder}")


if __name__ == "__main__":
    main()
