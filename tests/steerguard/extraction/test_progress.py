import signal
import threading

import pytest

from steerguard.extraction.progress import Stopped, stop_if, stop_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_leaves_the_second_as_it_was(number):
    taken: list[int] = []
    before = signal.signal(number, lambda given, _frame: taken.append(given))
    try:
        with stop_signals() as should_stop:
            assert not should_stop()
            signal.raise_signal(number)
            assert should_stop()
            assert taken == []
            signal.raise_signal(number)
            assert taken == [number]
        signal.raise_signal(number)
        assert taken == [number, number]
    finally:
        signal.signal(number, before)


def test_elsewhere_than_in_the_main_thread_nothing_is_taken():
    found: list[bool] = []

    def work() -> None:
        with stop_signals() as should_stop:
            found.append(should_stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_stopping_is_asked_for_or_not():
    stop_if(None)
    stop_if(lambda: False)
    with pytest.raises(Stopped):
        stop_if(lambda: True)
