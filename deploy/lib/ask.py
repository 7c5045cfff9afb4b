#!/usr/bin/env python3
"""Asks one question over the OpenAI API and prints the answer as it streams. Usage: ask.py URL QUESTION [OUTFILE]"""
import json
import sys
import urllib.request


def main() -> int:
    url, question = sys.argv[1], sys.argv[2]
    body = {"model": "", "stream": True, "max_tokens": 120, "temperature": 0,
            "messages": [{"role": "user", "content": question}]}
    with urllib.request.urlopen(url + "/v1/models") as r:
        body["model"] = json.load(r)["data"][0]["id"]
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    answer = ""
    with urllib.request.urlopen(request, timeout=120) as r:
        for line in r:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                print("\nerror in the stream:", chunk["error"]["message"], file=sys.stderr)
                return 1
            for choice in chunk["choices"]:
                text = choice["delta"].get("content") or ""
                answer += text
                print(text, end="", flush=True)
    print()
    if len(sys.argv) > 3:
        with open(sys.argv[3], "w", encoding="utf-8") as f:
            f.write(answer)
    return 0 if answer.strip() else 1


sys.exit(main())
