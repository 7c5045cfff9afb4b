"""/v1/responses: what a chat of the same messages says, read by the openai client and held to its types."""
import json
import unittest

from harness import Cluster

TEXT = "Hello, who are you?"
COMMON = dict(model="tiny", temperature=0.7, extra_body={"seed": 3})
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def stream(c, ask):
    """[(type of the event line, data)] as they come over the wire."""
    plain = {name: value for name, value in ask.items() if name != "extra_body"}
    with c.open("/v1/responses", {**plain, **ask["extra_body"], "stream": True}) as r:
        frames = [frame.split("\n") for frame in r.read().decode().split("\n\n") if frame]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in frames]


class Responses(unittest.TestCase):
    def setUp(self):
        try:
            import openai
            import pydantic
            from openai.types.responses import ResponseStreamEvent
        except ImportError:
            self.skipTest("the openai package is not installed, or older than /v1/responses")
        self.openai, self.pydantic = openai, pydantic
        self.known_events = pydantic.TypeAdapter(ResponseStreamEvent)

    def client(self, c):
        return self.openai.OpenAI(base_url=c.url + "/v1", api_key="none", max_retries=0)

    def check_stream(self, c, ask):
        """Every event has its type's shape, and the events make the answer that the last one has. Returns that."""
        events = stream(c, ask)
        made = []
        for i, (kind, data) in enumerate(events):
            self.assertEqual((kind, i), (data["type"], data["sequence_number"]))
            self.known_events.validate_python(data)
            if kind == "response.output_item.done":
                made.insert(data["output_index"], data["item"])
        self.assertEqual([kind for kind, _ in events[:2]], ["response.created", "response.in_progress"])
        last = events[-1][1]["response"]
        self.assertEqual(made, last["output"])
        return last

    def test_text_is_the_chats_bit_for_bit_streamed_or_not(self):
        with Cluster() as c:
            client = self.client(c)
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]
            stop = None
            for ended in ("incomplete", "completed"):
                common = {**COMMON, "extra_body": {**COMMON["extra_body"], "stop": stop}}
                chat = client.chat.completions.create(messages=messages, max_tokens=24, **common)
                ask = dict(instructions="Be brief.", input=TEXT, max_output_tokens=24, metadata={"a": "b"}, **common)
                whole = client.responses.create(**ask)
                self.assertEqual(whole.output_text, chat.choices[0].message.content)
                self.assertEqual((whole.status, whole.object, whole.model, whole.metadata, whole.instructions),
                                 (ended, "response", "tiny", {"a": "b"}, "Be brief."))
                self.assertEqual((whole.usage.input_tokens, whole.usage.output_tokens), (chat.usage.prompt_tokens, chat.usage.completion_tokens))
                type(whole).model_validate(whole.to_dict())
                deltas, final = "", None
                for event in client.responses.create(stream=True, **ask):
                    deltas += event.delta if event.type == "response.output_text.delta" else ""
                    final = event
                self.assertEqual(final.type, "response." + ended)
                self.assertEqual((deltas, final.response.output_text), (whole.output_text,) * 2)
                last = self.check_stream(c, ask)
                self.assertEqual([last["output"][0]["content"], last["status"], last["usage"]["output_tokens"]],
                                 [whole.to_dict()["output"][0]["content"], ended, whole.usage.output_tokens])
                stop = whole.output_text[8:11]
            with self.assertRaises(self.openai.NotFoundError):
                client.responses.create(input=TEXT, **{**COMMON, "model": "other"})
            with self.assertRaises(self.openai.BadRequestError) as refused:
                client.responses.create(input=TEXT, previous_response_id="resp_1", **COMMON)
            self.assertEqual(refused.exception.param, "previous_response_id")
            c.wait_idle()

    def test_answer_fits_the_clients_class(self):
        class Count(self.pydantic.BaseModel):
            n: int

        with Cluster() as c:
            client = self.client(c)
            chat = client.chat.completions.parse(messages=[{"role": "user", "content": TEXT}], response_format=Count, **COMMON)
            whole = client.responses.parse(input=TEXT, text_format=Count, **COMMON)
            self.assertEqual(whole.output_text, chat.choices[0].message.content)
            self.assertIsInstance(whole.output_parsed, Count)
            with client.responses.stream(input=TEXT, text_format=Count, **COMMON) as events:
                snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
                self.assertEqual(snapshots[-1], whole.output_text)
                self.assertEqual(events.get_final_response().output_parsed, whole.output_parsed)
            c.wait_idle()

    def test_tools_are_called_and_answered(self):
        tool = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": PARAMETERS, "strict": True}
        with Cluster(model_options=["--tools"]) as c:
            client = self.client(c)
            nested = [{"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}]
            messages = [{"role": "user", "content": TEXT}]
            chat = client.chat.completions.create(messages=messages, tools=nested, tool_choice="required", **COMMON)
            ask = dict(input=[{"role": "user", "content": TEXT}], tools=[tool], tool_choice="required", **COMMON)
            whole = client.responses.create(**ask)
            calls = [item for item in whole.output if item.type == "function_call"]
            self.assertEqual([(call.name, call.arguments) for call in calls],
                             [(call.function.name, call.function.arguments) for call in chat.choices[0].message.tool_calls])
            with client.responses.stream(**ask) as events:
                kinds = [event.type for event in events]
                self.assertIn("response.function_call_arguments.done", kinds)
                self.assertEqual([item.arguments for item in events.get_final_response().output if item.type == "function_call"],
                                 [call.arguments for call in calls])
            self.check_stream(c, ask)
            # the next turn: the items come back as the client has them
            say = chat.choices[0].message
            results = [{"role": "tool", "tool_call_id": call.id, "content": "Rain"} for call in say.tool_calls]
            want = client.chat.completions.create(messages=[*messages, say.to_dict(), *results], tools=nested, max_tokens=12, **COMMON)
            outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "Rain"} for call in calls]
            got = client.responses.create(input=[*ask["input"], *whole.output, *outputs], tools=[tool], max_output_tokens=12, **COMMON)
            self.assertEqual(got.output_text, want.choices[0].message.content)
            self.assertEqual(got.usage.input_tokens, want.usage.prompt_tokens)
            c.wait_idle()

    def test_logprobs_are_the_chats(self):
        with Cluster() as c:
            client = self.client(c)
            chat = client.chat.completions.create(messages=[{"role": "user", "content": TEXT}], max_tokens=8, logprobs=True, top_logprobs=2, **COMMON)
            ask = dict(input=TEXT, max_output_tokens=8, include=["message.output_text.logprobs"], top_logprobs=2, **COMMON)
            want = [entry.to_dict() for entry in chat.choices[0].logprobs.content]
            whole = client.responses.create(**ask)
            self.assertEqual([entry.to_dict() for entry in whole.output[0].content[0].logprobs], want)
            streamed = [entry for _, data in stream(c, ask) if data["type"] == "response.output_text.delta" for entry in data["logprobs"]]
            self.assertEqual(streamed, want)
            self.check_stream(c, ask)
            c.wait_idle()


if __name__ == "__main__":
    unittest.main(verbosity=2)
