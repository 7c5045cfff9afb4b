"""A sluice-paced-server as a context: whoever asks it knows what must be measured."""
import subprocess


class Paced:
    def __init__(self, program, prefix=(), **options):
        self.argv = [*prefix, program, *(f"--{k.replace('_', '-')}={v}" for k, v in options.items())]

    def __enter__(self):
        self.process = subprocess.Popen(self.argv, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()
