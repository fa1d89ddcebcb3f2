"""Runs inside of a driver, and the gain on data (Section 7): rounds of training one by one against together."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import json
import numpy as np

from polyfed.core.settings import Settings
from polyfed.experiment.building import plan
from polyfed.experiment.gain import PATIENCE, bases, chosen
from polyfed.reproduce.grids import default_engine
from polyfed.run.callbacks import Callback, RunView
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute
