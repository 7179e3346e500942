import threading

from gateway.cluster.lines import last_of, lines_of


def test_lines_end_with_the_file(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo \xff\n\nunfinished")
    assert list(lines_of(file, lambda: False)) == ["one", "two \ufffd", "", "unfinished"]
    assert list(lines_of(tmp_path / "none", lambda: True)) == []


def test_a_line_that_grows_is_one_line(tmp_path):
    file = tmp_path / "log"
    file.write_text("be")
    looks = []

    def more():
        looks.append(len(looks))
        if len(looks) == 1:
            with file.open("a") as out:
                out.write("gin")
        elif len(looks) == 2:
            with file.open("a") as out:
                out.write("ning\nend\n")
        return len(looks) < 4

    assert list(lines_of(file, more)) == ["beginning", "end"]


def test_a_reader_sees_what_another_thread_writes(tmp_path):
    file = tmp_path / "log"
    file.write_text("")
    done = threading.Event()

    def write():
        with file.open("a", buffering=1) as out:
            for number in range(100):
                out.write(f"{number}\n")
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = list(lines_of(file, lambda: not done.is_set()))
    writer.join()
    assert seen == [str(number) for number in range(100)]


def test_the_last_line_that_says_something(tmp_path):
    file = tmp_path / "log"
    assert last_of(file) == ""
    file.write_text("first\n" + "x" * 10_000 + "\nthe end \n\n")
    assert last_of(file) == "the end"
