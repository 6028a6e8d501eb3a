import pytest
import torch

from tests.train.tones import Work, make_manifest


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """As in the processes: sums over two threads have other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tones")
    make_manifest(folder, "train", 50)
    make_manifest(folder, "valid", 9, seed=1)
    return folder


@pytest.fixture
def work(tmp_path, data):
    return Work(tmp_path, data)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, data):
    """What a training without a kill gives: trace, weights and curve."""
    work = Work(tmp_path_factory.mktemp("whole"), data)
    work.process().finish()
    return work
