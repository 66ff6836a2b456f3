# SPDX-License-Identifier: Apache-2.0
"""Flower's side of bench/program.py: the same PyTorch function, called by a client of its classic API and by one of its deployment."""
