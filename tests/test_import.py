"""What ``import looseleaf`` costs."""

from __future__ import annotations

import os
import subprocess
import sys


def modules_after(program: str) -> set[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    listing = f"import sys; before = set(sys.modules)\n{program}\nprint(*(set(sys.modules) - before))"
    # Without site, whose own imports would hide ours.
    command = [sys.executable, "-S", "-c", listing]
    return set(
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    )


# What ``from __future__ import annotations`` loads; it loads nothing in turn.
LIGHT = {"__future__"}


def test_importing_the_package_loads_nothing_but_itself() -> None:
    assert modules_after("import looseleaf") - LIGHT == {"looseleaf"}


def test_the_error_classes_load_nothing_more() -> None:
    assert modules_after("import looseleaf.errors") - LIGHT == {"looseleaf", "looseleaf.errors"}


def test_the_pool_loads_the_extension_and_no_other_library() -> None:
    loaded = modules_after("from looseleaf import BlockPool")
    foreign = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"looseleaf", "looseleaf._core"}


def test_the_pool_and_the_manager_need_neither_numpy_nor_torch() -> None:
    loaded = modules_after("from looseleaf import BlockManager, BlockPool, KVCacheManager")
    assert "looseleaf._core" in loaded
    assert not {"numpy", "torch", "transformers"} & loaded


def test_every_exported_name_exists() -> None:
    import looseleaf

    assert [name for name in looseleaf.__all__ if not hasattr(looseleaf, name)] == []
    assert set(looseleaf.__all__) <= set(dir(looseleaf))
