"""`nearfar export`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE


def add(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="write the trained encoder as safetensors with config, loader and model card",
        description="Writes the encoder so that it loads in plain torchvision, timm or torch, without nearfar.",
        epilog="example: nearfar export runs/photos --to encoder/ --onnx",
    )
    export.add_argument("run", type=Path, metavar="RUN", help="run folder")
    export.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder to write")
    export.add_argument(
        "--license", metavar="ID", help="for the model card, such as apache-2.0 (default: not stated)"
    )
    export.add_argument(
        "--onnx", action="store_true", help="also write model.onnx and compare its output in onnxruntime"
    )
    export.add_argument(
        "--torch-export", action="store_true", help="also write model.pt2, a program of torch.export"
    )
    export.add_argument(
        "--projector",
        metavar="DATA",
        help="also write features of DATA for TensorBoard's projector, in DIR/projector",
    )
    export.add_argument("--push", metavar="OWNER/NAME", help="upload the folder to the Hugging Face hub")
    export.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.exported.write import export
    from nearfar.run.trained import Run

    trained = Run.open(args.run)
    folder = export(
        trained,
        args.to,
        licence=args.license,
        onnx=args.onnx,
        torch_export=args.torch_export,
        projector=args.projector,
    )
    for line in trained.ignored_files():
        print(line, file=sys.stderr)
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if args.push:
        from nearfar.exported.hub import push

        print(push(folder, args.push))
    return DONE
