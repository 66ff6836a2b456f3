# SPDX-License-Identifier: Apache-2.0
"""Exports PyTorch modules for mfl: `from mfl import export; export.save(net, example, "model.onnx")`. The same as mfl_export."""
from mfl_export import ExportError, save

__all__ = ["ExportError", "save"]
