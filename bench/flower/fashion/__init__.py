# SPDX-License-Identifier: Apache-2.0
"""Flower's side of the comparison: one model and one training, used by its classic API and its deployment."""
