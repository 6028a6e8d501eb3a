import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny networks on several threads mostly wait, and for ever so long where the tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
