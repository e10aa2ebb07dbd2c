"""Imports point down only, every module stands alone, and the light layers bring no heavy library along."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sequoia_cli

ROOT = Path(sequoia_cli.__file__).parent

#: What each layer may import of ours. `errors` and the version are for all.
LAYERS = {
    "errors": set(),
    "core": set(),
    "compiler": {"core"},
    "engine": {"core"},
    "measure": {"engine", "core"},
    "distill": {"measure", "engine", "compiler", "core"},
    "check": {"engine", "core"},
    "bench": {"measure", "engine", "core"},
    "cli": {"measure", "check", "distill", "bench", "engine", "compiler", "core"},
    "__main__": {"cli"},
    "__init__": set(),
}
HEAVY = ("torch", "transformers", "scipy")
FOREIGN = ("llama_cpp", "openvino", "openvino_genai", "vllm")
LIGHT_LAYERS = ("errors", "core", "compiler", "cli")


def name_of(path):
    """Dotted name of the module in a file."""
    parts = ["sequoia_cli", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module):
    """The part of the package that a dotted name belongs to."""
    return [*module.split("."), "__init__"][1]


FILES = sorted(path for path in ROOT.rglob("*.py") if "shipped" not in path.parts)
MODULES = sorted(map(name_of, FILES))
LIGHT = [module for module in MODULES if layer_of(module) in LIGHT_LAYERS]
HEAVY_MODULES = [
    module for module in MODULES if layer_of(module) in ("engine", "measure", "check", "distill", "bench")
]


def own_imports(source):
    """(line, dotted name) of every import of ours anywhere in the source, functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            # `from sequoia_cli import x` names a module or a value of the package itself.
            names = [
                f"{node.module}.{a.name}" if node.module == "sequoia_cli" else node.module for a in node.names
            ]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "sequoia_cli":
                yield node.lineno, name


def forbidden_imports(source, layer):
    """The imports that point upward or sideways from `layer`."""
    allowed = LAYERS[layer] | {layer, "errors", "__version__"}
    return [(line, name) for line, name in own_imports(source) if layer_of(name) not in allowed]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_down_only(path):
    assert forbidden_imports(path.read_text(), layer_of(name_of(path))) == []


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("core", "from sequoia_cli.compiler import tables"),
        ("compiler", "import sequoia_cli.engine.model"),
        ("engine", "def f():\n    from sequoia_cli.compiler.best import BestTrees"),
        ("measure", "from sequoia_cli import cli"),
        ("measure", "from sequoia_cli.distill.corpus import Corpus"),
        ("check", "from sequoia_cli.compiler import choose"),
        ("engine", "from sequoia_cli.distill.corpus import Corpus"),
    ],
)
def test_an_upward_import_would_be_seen(layer, line):
    assert forbidden_imports(line, layer) != []


def test_every_module_has_a_layer():
    assert {layer_of(module) for module in MODULES} <= set(LAYERS)


@pytest.mark.parametrize("module", LIGHT)
def test_every_light_module_imports_alone_with_warnings_as_errors(module):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_every_heavy_module_imports_alone_with_warnings_as_errors():
    """One interpreter for all, as the libraries take seconds: they stay loaded, our modules are forgotten."""
    script = f"""
import importlib, sys, warnings
import torch, transformers
for module in {HEAVY_MODULES!r}:
    for known in [name for name in sys.modules if name.split(".")[0] == "sequoia_cli"]:
        del sys.modules[known]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="sequoia_cli")
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:  # an engine to compare with, which need not be installed
            if error.name not in {FOREIGN!r}:
                raise
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_heavy_libraries_stay_out_of_cli_core_and_compiler():
    script = f"""
import importlib, sys
for module in {LIGHT!r}:
    importlib.import_module(module)
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_compiling_brings_no_heavy_library_along(tmp_path):
    script = f"""
import sys
from sequoia_cli.cli.app import main
sys.argv = ["sequoia", "compile", "--quiet", "--explain", "-o", "-"]
try:
    main()
finally:
    print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""
    environment = {"SEQUOIA_CACHE": str(tmp_path), "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stderr.strip() == "[]"


@pytest.mark.parametrize("path", FILES, ids=map(name_of, FILES))
def test_json_is_never_written_with_numbers_that_it_does_not_have(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dump", "json.dumps"):
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            assert options.get("allow_nan") == "False", f"{path.name}, line {node.lineno}"
