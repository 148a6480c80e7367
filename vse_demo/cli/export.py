"""`vse-demo export`: both encoders of a model for other runtimes, ONNX or `torch.export`."""

import argparse
from pathlib import Path

from vse_demo.cli.flags import Verbs, add_import_flag


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("export", help="write both encoders of a model as ONNX files or torch.export programs")
    verb.add_argument("--model", required=True, help="a folder, grid-minilm, grid-bigru, or user/repository of the hub")
    verb.add_argument("--out", type=Path, required=True, help="a new folder")
    verb.add_argument("--format", choices=("onnx", "torch"), default="onnx", help="default: onnx")
    add_import_flag(verb)
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Export, compare with the model, and write everything or nothing."""
    from vse_demo.model import VSE
    from vse_demo.model.export import export_folder

    model = VSE.from_pretrained(chosen.model)
    for path in export_folder(model, chosen.out, chosen.format):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    print("their vectors are those of the model, to 1e-5")
