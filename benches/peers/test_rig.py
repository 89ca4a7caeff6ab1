"""Tests of the rig that need no peer: `python3 -m unittest discover -s benches/peers`."""
import contextlib
import io
import json
import math
import os
import signal
import sys
import tempfile
import time
import unittest
from collections import defaultdict
from pathlib import Path
from xml.dom import minidom

from rig import kolo, markdown, mpi, namespace, network, options, placement, processes, ratios, svg
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


    def test_messages_are_for_mpi_libraries_on_one_host(self):
        self.assertEqual(options.parse(["--mpi", "--collectives", "sendrecv"]).collectives, ["sendrecv"])
        for refused in (["--collectives", "sendrecv"], ["--mpi", "--network", "--hosts 2"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
                options.parse(refused)

    def test_programs_find_the_mpi_library_by_its_common_name(self):
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "libmpi.so"
            library.write_bytes(b"")
            for _ in range(2):
                kolo.link(library, Path(folder) / "linked")
            self.assertEqual((Path(folder) / "linked" / "libmpi.so.12").resolve(), library.resolve())


class Networks(unittest.TestCase):
    def test_a_limit_follows_from_the_slowest_host_and_its_cards(self):
        plain = network.Network("--hosts 4 --rate 1G --delay 1ms", 2)
        seconds = plain.limit_us("all_reduce", 1 << 20) * 1e-6 - 1e-3
        self.assertAlmostEqual(seconds * 125e6 * 1448 / 1538, 1.5 * (1 << 20), delta=1)
        self.assertAlmostEqual(plain.limit_us("barrier", 0), 1000)
        exchanged = [plain.limit_us(name, 1 << 20) - 1000 for name in ("all_gather", "all_to_all")]
        self.assertAlmostEqual(exchanged[1], 2 * exchanged[0], msg="every rank of a host sends its own")
        cards = network.Network("--hosts 2 --nics 2 --rate 1G --nic-rate 1=500M", 1)
        self.assertAlmostEqual(cards.rate, 1.5e9 / 8 * 1448 / 1538)
        slow = network.Network("--hosts 3 --rate 1G --host-rate 2=100M", 1)
        self.assertAlmostEqual(slow.rate, 1e8 / 8 * 1448 / 1538)
        self.assertIsNone(network.Network("--hosts 2", 1).limit_us("broadcast", 8))

    def test_the_table_has_times_shares_and_the_best_peer(self):
        lan = network.Network("--hosts 2 --rate 1G --delay 25us", 1)
        key = (lan.text, 1, "all_gather", 1 << 20)
        times = {key: {"kolo": [5000, 6000, 5500], "gloo": [11000], "mpich5": [8250, 8250]}}
        found = {name: (name.title(), None) for name in ("kolo", "gloo", "mpich5", "openmpi5")}
        failures = {(lan.text, 1, "openmpi5"): ["exit status 1: no route"]}
        page = network.render([lan], found, {"Intel MPI": "not here"}, times, failures, 3)
        row = next(line for line in page.splitlines() if line.startswith("| all_gather"))
        share = lan.limit_us("all_gather", 1 << 20) / 5500
        self.assertIn(f"| 5,500 ({share:.2f}) |", row)
        self.assertTrue(row.endswith("|  | 1.50 |"), row)
        self.assertIn("Openmpi5 failed: exit status 1: no route", page)
        self.assertIn("Intel MPI: not here", page)


def noted(library, number, *flags, micros=10, **rest):
    """Returns a point with these flag times recorded beside it."""
    return dict(record(library, number, micros, **rest), **({"flag_ns": list(flags)} if flags else {}))


# A shell script in place of flag_distance, which leaves a sign of each record.
FLAG = "[ -z $1 ] && echo 41.5; while [ $1 ] && sleep 0.01; do echo 0 41.5; touch $0.noted; done"


def until_noted(program):
    """Returns a command that waits for a new record: the second sign, since the first may be from before."""
    wait = f"rm -f {program}.noted; until [ -e {program}.noted ]; do sleep 0.01; done; "
    return wait + wait


def says(collectives, sizes, name="kolo", first=""):
    """Returns a library whose program prints these points, after `first`."""
    lines = [json.dumps({"collective": collective, "ranks": 2, "bytes": size, "batch": 1, "samples": 1, "median_us": 1,
                         "foreign": 0, "from_s": 0, "to_s": 0}) for collective in collectives for size in sizes]
    script = first + "; ".join(f"echo '{line}'" for line in lines)
    return Library(name, name, lambda ranks, transport: Launch(["sh", "-c", script, name]))


NEAR, FAR, MOVED = (40, 45), (150, 160), (40, 155)


class Placement(unittest.TestCase):
    def test_a_point_has_the_notes_around_it(self):
        notes = [(1.0, 40.0), (2.0, 41.0), (3.0, 150.0), (4.0, 151.0), (5.0, 40.0)]
        points = [{"from_s": 2.1, "to_s": 2.9}, {"from_s": 3.1, "to_s": 3.2}, {"from_s": 5.5, "to_s": 6.0}]
        placement.mark(points, notes, None)
        self.assertEqual([point["flag_ns"] for point in points], [[41.0, 150.0], [150.0, 151.0], [40.0, 40.0]])
        self.assertEqual([placement.kind(point, 80) for point in points], ["moved", "far", "near"])

    def test_points_of_the_kind_that_most_libraries_have_are_compared(self):
        (point,) = ratios.points([noted("kolo", 1, *NEAR), noted("kolo", 2, *FAR, micros=30),
                                  noted("a", 1, *FAR, micros=60), noted("a", 2, *MOVED, micros=5)])
        self.assertEqual((point.times, point.ratio, point.alike), ({"kolo": 30, "a": 60}, 2.0, True))

    def test_a_library_without_such_a_point_is_compared_all_the_same_and_marked(self):
        (point,) = ratios.points([noted("kolo", 1, *NEAR), noted("a", 1, *NEAR, micros=20), noted("b", 1, *FAR, micros=15)])
        self.assertEqual((point.best, point.alike), ("b", False))

    def test_one_kind_and_no_notes_are_compared_whatever_there_is(self):
        for flags in (), (50, 60):
            (point,) = ratios.points([noted("kolo", 1, *flags), noted("a", 1, *flags, micros=20)])
            self.assertEqual((point.ratio, point.alike), (2.0, True))

    def test_a_note_that_was_held_up_is_no_kind(self):
        points = [noted("kolo", number, 40, 42) for number in range(50)] + [noted("kolo", 50, 41, 9000)]
        self.assertIsNone(placement.border(points))

    def test_what_is_lacking_is_run_again_while_the_processors_lie_so(self):
        points = [noted("kolo", 1, *NEAR), noted("a", 1, *NEAR), noted("b", 1, *FAR), noted("b", 2, *MOVED),
                  noted("kolo", 1, *FAR, size=8), noted("a", 1, *FAR, size=8), noted("b", 1, *FAR, size=8)]
        self.assertEqual(placement.lacking(points), {("b", "shm", 4, "near"): {("all_reduce", 1024)}})
        self.assertEqual(placement.lacking([noted("kolo", 1), noted("a", 1)]), {})

    def test_a_program_gets_another_turn_for_what_it_lacks(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "flag_distance"
            # The placement is far once, while the other library runs for the first time.
            program.write_text(FLAG.replace("0 41.5", f"0 $(cat {folder}/flag || echo 41.5)"))
            far_once = f"[ -e {folder}/ran ] && rm -f {folder}/flag || echo 150 >{folder}/flag; touch {folder}/ran; "
            noted = until_noted(program)
            chosen = options.parse(["--transports", "shm", "--ranks", "2", "--collectives", "all_reduce,broadcast",
                                    "--rounds", "1", "--sizes", "8,1K", "--together"])
            told, names = [], ["all_reduce", "broadcast"]
            libraries = [says(names, [8, 1024], "a", far_once + noted), says(names, [8, 1024], first=f"rm -f {folder}/flag; " + noted)]
            Schedule(chosen, libraries, [], told.append, probe=placement.Probe(program, ["sh"])).run()
            points = [one for one in told if one["kind"] == "point"]
            self.assertEqual({point["round"] for point in points if point["library"] == "kolo"}, {1})
            self.assertEqual({point["round"] for point in points if point["library"] == "a"}, {1, 2})
            self.assertEqual(placement.lacking(points), {})
            self.assertEqual([(one["round"], one.get("again")) for one in told if one["kind"] == "turn"], [(1, None), (2, "a")])

    def test_the_page_says_so(self):
        text = placement.told([noted("kolo", 1, *NEAR), noted("kolo", 2, *FAR), noted("kolo", 3, *MOVED)])
        self.assertIn("near each other during 1 measurements, far apart during 1, and moved during 1", text)
        self.assertEqual(placement.told([noted("kolo", 1, 40, 41)]), "")

    def test_the_page_says_what_was_not_noted_and_why(self):
        blind = dict(noted("kolo", 3), flag_problem="it is tired")
        text = placement.told([noted("kolo", 1, *NEAR), noted("kolo", 2, *FAR), blind])
        self.assertIn("far apart during 1", text)
        self.assertIn("not known of 1 of 3 measurements** (it is tired)", text)
        self.assertIn("not known of all 2 measurements** (not noted)", placement.told([noted("kolo", 1), noted("a", 1)]))

    def test_a_probe_that_cannot_run_is_on_the_page(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "flag_distance"
            chosen = options.parse(["--transports", "shm", "--ranks", "2", "--collectives", "barrier", "--rounds", "1"])

            def page(prefix, first=""):
                probe, told = placement.Probe(program, prefix), []
                Schedule(chosen, [says(["barrier"], [0], first=first)], [], told.append, probe=probe).run()
                meta = {"machine": defaultdict(str), "rounds": 1, "shield": "", "load_after": 0, "foreign_median": 0,
                        "foreign_disturbed": 0, "libraries": {}, "complete": True,
                        "placement": placement.told([one for one in told if one["kind"] == "point"])}
                return markdown.how(meta)

            self.assertIn("not known of all 1 measurements** (flag_distance is not built)", page([]))
            program.write_text("echo no processors in $0 >&2; exit 3")
            self.assertIn("(flag_distance ends with status 3: no processors in flag_distance)", page(["sh"]))
            self.assertIn("(flag_distance cannot be started: Permission denied)", page([]))
            program.write_text(FLAG)
            self.assertNotIn("not known", page(["sh"], until_noted(program)))


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

    def test_busy_processes_run_beside_a_program_and_end_with_it(self):
        processes.adopt_orphans()
        beside = f"ps -o args= --ppid {os.getpid()} | grep -c 'while :; do :; don[e]'"
        status, output, _ = processes.run(["sh", "-c", beside], {}, 10, busy=3)
        self.assertEqual((status, output), (0, "3\n"))
        self.assertEqual(processes.descendants(), [])


if __name__ == "__main__":
    unittest.main()
