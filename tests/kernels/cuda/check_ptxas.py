#!/usr/bin/env python3
"""tests/kernels/cuda/check_ptxas.py FOLDER - what ptxas said of the kernels while they were built.

FOLDER holds a .ptxas file per .cu file. Every kernel must be there for every target, none may spill registers or keep
arrays on its stack, and nothing may have been warned of. Prints a table of registers; exits 1 on a fault, and 77
(skipped) when this build has no CUDA.
"""
import glob
import os
import re
import sys

TARGETS = {"sm_80", "sm_90a"}
COMPILING = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
KERNEL_NAME = re.compile(r"_Z\d+([a-z_0-9]+?)\d+cu_")


def read(path):
    """(kernel, target) -> [registers, stack, spills]; and the lines with a warning."""
    kernels, warnings, at = {}, [], None
    with open(path, encoding="utf-8") as f:
        for line in f:
            if m := COMPILING.search(line):
                name = KERNEL_NAME.match(m[1])
                at = kernels.setdefault((name[1] if name else m[1], m[2]), [0, 0, 0])
            elif at and (m := PROPERTIES.search(line)):
                at[1:] = [int(m[1]), int(m[2]) + int(m[3])]
            elif at and (m := REGISTERS.search(line)):
                at[0] = int(m[1])
            elif "warning" in line:
                warnings.append(line.strip())
    return kernels, warnings


def main():
    files = sorted(glob.glob(os.path.join(sys.argv[1], "*.ptxas")))
    if not files:
        print("this build has no CUDA")
        return 77
    faults = []
    for path in files:
        kernels, warnings = read(path)
        faults += [f"{os.path.basename(path)}: {w}" for w in warnings]
        if not kernels:
            faults.append(f"{os.path.basename(path)}: ptxas named no kernel")
        for name in sorted({k for k, _ in kernels}):
            missing = TARGETS - {t for k, t in kernels if k == name}
            if missing:
                faults.append(f"{name} is not built for {', '.join(sorted(missing))}")
        for (name, target), (registers, stack, spills) in sorted(kernels.items()):
            print(f"{name:32} {target:8} {registers:4} registers")
            if stack or spills:
                faults.append(f"{name} for {target}: {stack} bytes of stack, {spills} bytes spilled")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


sys.exit(main())
