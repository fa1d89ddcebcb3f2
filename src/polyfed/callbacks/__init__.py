"""Callbacks that come with polyfed: stop early, keep the best model, keep to a budget, and hand the numbers on."""

from __future__ import annotations

from polyfed.callbacks.best_model import BestModel
from polyfed.callbacks.budgets import ByteBudget, TimeBudget
from polyfed.callbacks.csv_file import CSV
from polyfed.callbacks.early_stopping import EarlyStopping
from polyfed.callbacks.mlflow import MLflow
from polyfed.callbacks.printer import Printer
from polyfed.callbacks.tensorboard import TensorBoard

__all__ = ["CSV", "BestModel", "ByteBudget", "EarlyStopping", "MLflow", "Printer", "TensorBoard", "TimeBudget"]
