"""A load that comes from two agents: one report, both clocks known; an agent for another server refuses; a lost agent is told."""
import json
import os
import re
import subprocess
import unittest

from harness import Cluster, Daemon, program, wait_for


class Agents(unittest.TestCase):
    def start(self, c, name, url):
        """An agent process and its address."""
        agent = Daemon(name, [program("sluice-bench"), "agent", "--listen", "127.0.0.1:0", "--url", url], c.folder)
        c.daemons[name] = agent
        listens = wait_for("the agent to listen", lambda: agent.check_alive() and re.search(r"listening on .*, port (\d+),", agent.log()))
        return agent, f"127.0.0.1:{listens[1]}"

    def compare(self, c, addresses, *options):
        report = os.path.join(c.folder, "compare.json")
        bench = subprocess.Popen([program("sluice-bench"), "compare", "--url", c.url, "--agents", ",".join(addresses), "--json", report,
                                  "--prompt-tokens", "20:60", "--output-tokens", "4:8", *options],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(bench.stdout.close)
        return bench, report

    def test_two_agents_one_report(self):
        with Cluster() as c:
            addresses = [self.start(c, name, c.url)[1] for name in ("a0", "a1")]
            bench, report = self.compare(c, addresses, "--requests", "11", "--rounds", "1", "--rate", "20")
            text = bench.communicate()[0]
            self.assertEqual(bench.returncode, 0, text)
            with open(report) as f:
                doc = json.load(f)
            self.assertEqual(doc["differences"], 0)
            self.assertEqual([a["requests"] for a in doc["agents"]], [18, 15])  # 3 modes of 6 and 5
            for a in doc["agents"]:  # one machine, one clock: what is found is the error, and within its bound
                self.assertLessEqual(abs(a["offset_us"]), a["offset_error_us"])
                self.assertFalse(a["lost"])
            self.assertTrue(all(m["requests"] == 11 and m["errors"] == 0 for m in doc["modes"].values()))

    def test_agent_of_another_server_refuses(self):
        with Cluster() as c:
            _, address = self.start(c, "a0", "http://127.0.0.1:1")
            bench, _ = self.compare(c, [address])
            text = bench.communicate()[0]
            self.assertEqual(bench.returncode, 3, text)
            self.assertIn("it was started for http://127.0.0.1:1 and sends to nothing else", text)

    def test_lost_agent_is_told_and_its_requests_are_errors(self):
        with Cluster(hold={"d0": 1}) as c:  # no answer comes before the agent is lost
            (_, first), (second, second_address) = self.start(c, "a0", c.url), self.start(c, "a1", c.url)
            bench, report = self.compare(c, [first, second_address], "--arms", "pd", "--requests", "6", "--rounds", "3", "--rate", "1")
            wait_for("the load to run", lambda: "requests to send" in second.log())
            second.kill()
            second.wait()
            c.release("d0")
            text = bench.communicate()[0]
            self.assertEqual(bench.returncode, 1, text)
            self.assertIn(f"the agent at {second_address} was lost", text)
            with open(report) as f:
                doc = json.load(f)
            self.assertEqual([a["lost"] for a in doc["agents"]], [False, True])
            self.assertEqual((doc["modes"]["pd"]["requests"], doc["modes"]["pd"]["errors"]), (6, 3))


if __name__ == "__main__":
    unittest.main(verbosity=2)
