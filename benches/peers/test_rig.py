"""Tests of the rig that need no peer: `python3 -m unittest discover -s benches/peers`."""
import math
import signal
import sys
import tempfile
import time
import unittest
from collections import defaultdict
from pathlib import Path
from xml.dom import minidom

from rig import markdown, mpi, namespace, options, placement, processes, ratios, svg
from rig.peer import Launch, Library
from rig.schedule import Schedule


def record(library, number, micros, size=1024, foreign=0.0, collective="all_reduce", ranks=4):
    return {"kind": "point", "library": library, "round": number, "transport": "shm", "ranks": ranks,
            "collective": collective, "bytes": size, "median_us": micros, "cpu_us": micros * ranks, "foreign": foreign}


class Options(unittest.TestCase):
    def test_sizes_have_units(self):
        self.assertEqual(options.parse(["--sizes", "1M,8,32K"]).sizes, [8, 32 << 10, 1 << 20])

    def test_full_reaches_256_mib(self):
        self.assertEqual(options.parse(["--full"]).sizes[-2:], [128 << 20, 256 << 20])


def turn(number, *flags, ranks=2):
    noted = {"flag_ns": list(flags)} if flags else {}
    return {"kind": "turn", "round": number, "transport": "shm", "ranks": ranks, "collectives": ["all_reduce"], **noted}


class Placement(unittest.TestCase):
    def rounds(self, *turns):
        return sorted(number for number, *_ in placement.comparable(list(turns)))

    def test_turns_of_one_kind_are_compared_and_the_most_common_kind_counts(self):
        near, far, moved = (40, 41, 40), (150, 160, 155), (40, 40, 155)
        self.assertEqual(self.rounds(turn(1, *near), turn(2, *far), turn(3, *far), turn(4, *moved)), [2, 3])
        self.assertEqual(self.rounds(turn(1, *near), turn(2, *moved), turn(3, *moved)), [1])

    def test_nothing_is_left_out_for_want_of_knowledge_or_of_better(self):
        self.assertEqual(self.rounds(turn(1), turn(2)), [1, 2])
        self.assertEqual(self.rounds(turn(1, 40, 45), turn(2, 50, 44)), [1, 2])
        self.assertEqual(self.rounds(turn(1, 40, 150), turn(2, 150, 40)), [1, 2])

    def test_combinations_choose_for_themselves(self):
        kept = placement.comparable([turn(1, 40, 40), turn(1, 150, 150, ranks=4)])
        self.assertEqual({ranks for _, _, ranks, _ in kept}, {2, 4})

    def test_the_page_says_so(self):
        self.assertIn("near each other in 1 turns, far apart in 1, and moved during 0", placement.told([turn(1, 40), turn(2, 150)]))
        self.assertEqual(placement.told([turn(1, 40), turn(2, 41)]), "")

    def test_the_page_says_what_was_not_noted_and_why(self):
        blind = dict(turn(3), flag_problem="it is tired")
        text = placement.told([turn(1, 40), turn(2, 150), blind])
        self.assertIn("far apart in 1", text)
        self.assertIn("not known of 1 of 3 turns** (it is tired)", text)
        self.assertIn("not known of all 2 turns** (not noted)", placement.told([turn(1), turn(2)]))

    def test_a_probe_that_cannot_run_is_on_the_page(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "flag_distance"
            kolo = Library("kolo", "kolo", lambda ranks, transport: Launch(["false"]))
            chosen = options.parse(["--transports", "shm", "--ranks", "2", "--collectives", "barrier", "--rounds", "1"])

            def page(prefix):
                probe, told = placement.Probe(program, prefix), []
                Schedule(chosen, [kolo], [], told.append, probe=probe).run()
                meta = {"machine": defaultdict(str), "rounds": 1, "shield": "", "load_after": 0, "foreign_median": 0,
                        "foreign_disturbed": 0, "libraries": {}, "complete": True,
                        "placement": placement.told([one for one in told if one["kind"] == "turn"])}
                return markdown.how(meta)

            self.assertIn("not known of all 1 turns** (flag_distance is not built)", page([]))
            program.write_text("echo no processors in $0 >&2; exit 3")
            self.assertIn("(flag_distance ends with status 3: no processors in flag_distance)", page(["sh"]))
            self.assertIn("(flag_distance cannot be started: Permission denied)", page([]))
            program.write_text("echo 41.5")
            self.assertNotIn("not known", page(["sh"]))


class Ratios(unittest.TestCase):
    def test_best_peer_of_the_medians_and_hardest_spread(self):
        records = [record("kolo", 1, 10), record("kolo", 2, 10), record("a", 1, 20), record("a", 2, 20),
                   record("b", 1, 5), record("b", 2, 45)]
        (point,) = ratios.points(records)
        self.assertEqual((point.best, point.ratio), ("a", 2.0))
        self.assertEqual((point.low, point.high), (0.5, 2.0))

    def test_disturbed_rounds_are_left_out_where_others_exist(self):
        (point,) = ratios.points([record("kolo", 1, 10), record("a", 1, 99, foreign=0.5), record("a", 2, 30)])
        self.assertEqual((point.ratio, point.disturbed), (3.0, False))
        (point,) = ratios.points([record("kolo", 1, 10), record("a", 1, 99, foreign=0.5)])
        self.assertTrue(point.disturbed)

    def test_turns_that_were_cut_short_do_not_count(self):
        turn = {"kind": "turn", "round": 1, "transport": "shm", "ranks": 4, "collectives": ["all_reduce"]}
        records = [record("kolo", 1, 10), record("a", 1, 20), turn, record("kolo", 2, 1)]
        self.assertEqual([kept["round"] for kept in ratios.complete(records)], [1, 1])

    def test_processor_time_is_compared_with_the_thriftiest_peer(self):
        sleeper = dict(record("b", 1, 90, size=1000), cpu_us=10)
        (point,) = ratios.points([record("kolo", 1, 5, size=1000), record("a", 1, 20, size=1000), sleeper])
        self.assertEqual((point.best, point.thriftiest, point.thrift), ("a", "b", 0.5))
        self.assertAlmostEqual(point.processor_seconds("kolo"), 20.0)

    def test_records_without_processor_time_have_none(self):
        (point,) = ratios.points([{name: value for name, value in record(library, 1, 10).items() if name != "cpu_us"}
                                  for library in ("kolo", "a")])
        self.assertEqual((point.processors, point.ratio), ({}, 1.0))
        self.assertTrue(math.isnan(point.thrift))

    def test_no_peer_means_no_ratio(self):
        (point,) = ratios.points([record("kolo", 1, 10)])
        self.assertTrue(math.isnan(point.ratio))
        self.assertEqual(ratios.means([point]), {})

    def test_bus_bandwidth_counts_as_nccl_tests_does(self):
        self.assertEqual(ratios.bus_factor("all_reduce", 4), 1.5)
        self.assertEqual(ratios.bus_factor("all_gather", 4), 0.75)
        self.assertEqual(ratios.bus_factor("broadcast", 4), 1.0)

    def test_means(self):
        points = ratios.points([record("kolo", 1, 10), record("a", 1, 5), record("kolo", 1, 10, 8),
                                record("a", 1, 20, 8)])
        value, count, lost = ratios.means(points)[()]
        self.assertAlmostEqual(value, 1.0)
        self.assertEqual((count, lost), (2, 1))


class Pages(unittest.TestCase):
    def test_units(self):
        self.assertEqual([markdown.human_bytes(size) for size in (8, 32 << 10, 256 << 20)],
                         ["8 B", "32 KiB", "256 MiB"])
        self.assertEqual([markdown.human_time(micros) for micros in (0.25, 1500, 2e6)], ["0.25 µs", "1.5 ms", "2 s"])

    def test_a_plot_is_xml(self):
        points = ratios.points([record(library, 1, micros, size) for library, micros in (("kolo", 10), ("a", 20))
                                for size in (8, 1024)])
        drawn = svg.draw("title <&>", {"kolo": "Kolo", "a": "A"}, points)
        self.assertEqual(len(minidom.parseString(drawn).getElementsByTagName("polyline")), 4)


class ProcessorTime(unittest.TestCase):
    def test_the_section_has_every_point_over_tcp(self):
        records = [dict(record(library, 1, micros, 1 << 30), transport=transport)
                   for library, micros in (("kolo", 10**6), ("a", 3 * 10**6)) for transport in ("tcp", "shm")]
        text = markdown.processor_time(ratios.points(records))
        self.assertIn("| 4 | 1024 MiB | 3.73 | 11.2 | 3.00 |", text)
        self.assertIn("a peer needs less in 0 of 1", text)


class Launchers(unittest.TestCase):
    def test_flavours(self):
        told = {"openmpi": ("mpirun (Open MPI) 5.0.11\n", "5.0.11"), "mpich": ("HYDRA:\n Version:   4.0.2\n", "4.0.2"),
                "intelmpi": ("Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 1\n", "2021.18")}
        for flavour, (text, version) in told.items():
            found = next(name for name, pattern in mpi.FLAVOURS.items() if pattern.search(text))
            self.assertEqual((found, mpi.FLAVOURS[found].search(text)[1]), (flavour, version))


class Namespaces(unittest.TestCase):
    def setUp(self):
        try:
            self.namespace = namespace.Namespace()
        except namespace.Missing as why:
            self.skipTest(f"no network namespace: {why}")

    def test_a_namespace_has_reno_and_a_loopback_interface_that_is_counted(self):
        self.assertEqual(self.namespace.told("cat", namespace.SETTING), "reno\n")
        before = self.namespace.loopback_bytes()
        send = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.sendto(bytes(1000), ('127.0.0.1', 9))"
        self.namespace.told(sys.executable, "-c", send)
        self.assertGreaterEqual(self.namespace.loopback_bytes() - before, 1000)

    def test_peers_run_inside_and_kolo_outside(self):
        show = ["sh", "-c", f"cat {namespace.SETTING} >&2; exit 1", "-"]
        libraries = [Library(name, name, lambda ranks, transport: Launch(show)) for name in ("kolo", "a")]
        told = []
        chosen = options.parse(["--transports", "tcp-reno", "--ranks", "2", "--collectives", "barrier", "--rounds", "1"])
        Schedule(chosen, libraries, [], told.append, self.namespace).run()
        reasons = {one["library"]: one["reason"] for one in told if one["kind"] == "failure"}
        with open(namespace.SETTING) as setting:
            self.assertIn(setting.read().strip(), reasons["kolo"])
        self.assertIn("reno", reasons["a"])


class Processes(unittest.TestCase):
    def test_late_programs_are_ended_with_what_they_started(self):
        processes.adopt_orphans()
        nested = "import subprocess, time; subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(60)"
        started = time.monotonic()
        status, _, _ = processes.run([sys.executable, "-c", nested], {}, 1)
        self.assertIsNone(status)
        self.assertLess(time.monotonic() - started, 10)
        self.assertEqual(processes.descendants(), [])

    def test_output_and_status(self):
        status, output, _ = processes.run(["sh", "-c", "echo $WORD; exit 3"], {"WORD": "yes"}, 10)
        self.assertEqual((status, output), (3, "yes\n"))
        processes.end_descendants(signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
