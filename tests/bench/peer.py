"""Brings llama.cpp as a peer to measure against: its sources come inside the Python package llama-cpp-python. Prints the folder of its programs."""
import glob
import os
import subprocess
import sys
import tarfile

VERSION = "0.3.36"
CACHE = os.path.join(os.environ.get("SLUICE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice"),
                     f"llama-cpp-{VERSION}")
PROGRAMS = ("llama-server", "llama-bench", "llama-batched-bench")


def bring():
    """The folder with the programs; builds them once (about 15 minutes on 2 cores)."""
    if os.environ.get("SLUICE_PEER"):
        return os.environ["SLUICE_PEER"]
    out = os.path.join(CACHE, "build", "bin")
    if all(os.path.exists(os.path.join(out, p)) for p in PROGRAMS):
        return out
    os.makedirs(CACHE, exist_ok=True)
    run = lambda *a: subprocess.run(a, check=True, stdout=sys.stderr)  # noqa: E731
    run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", "-d", CACHE,
        f"llama-cpp-python=={VERSION}")
    with tarfile.open(glob.glob(os.path.join(CACHE, "llama_cpp_python-*.tar.gz"))[0]) as t:
        t.extractall(CACHE)
    source = os.path.join(glob.glob(os.path.join(CACHE, "llama_cpp_python-*/"))[0], "vendor", "llama.cpp")
    run("cmake", "-S", source, "-B", os.path.join(CACHE, "build"), "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_OPENSSL=OFF")
    run("cmake", "--build", os.path.join(CACHE, "build"), "-j", str(os.cpu_count()), "--target", *PROGRAMS)
    return out


if __name__ == "__main__":
    print(bring())
