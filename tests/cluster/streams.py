"""A stream read in the background, and what is in its chunks."""
import threading

from harness import LIMIT_S


class Background:
    def __init__(self, generator):
        self.chunks, self.error = [], None
        self.thread = threading.Thread(target=self.run, args=(generator,), daemon=True)
        self.thread.start()

    def run(self, generator):
        try:
            for chunk in generator:
                self.chunks.append(chunk)
        except Exception as e:  # noqa: BLE001 - told by result()
            self.error = e

    def running(self):
        return self.thread.is_alive()

    def result(self):
        self.thread.join(LIMIT_S)
        if self.thread.is_alive():
            raise AssertionError(f"the stream did not end in {LIMIT_S:.0f} s, {len(self.chunks)} chunks came")
        if self.error:
            raise self.error
        return self.chunks


def tokens_of(chunks):
    return [t for k in chunks for choice in k.get("choices", []) for t in choice.get("token_ids") or []]


def errors_of(chunks):
    return [k["error"] for k in chunks if "error" in k]
