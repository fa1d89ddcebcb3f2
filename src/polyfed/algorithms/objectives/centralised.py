"""The reference: multiple gradient descent on all data in one place (MGD, Desideri 2012; SMGD with minibatches).

x <- x - eta sum_s lambda_s grad F_s(x), lambda = argmin |sum_s lambda_s grad F_s(x)|^2 over the simplex. It is FMGDA
with one local step and one client that has everybody's rows.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from polyfed.algorithms import algorithms
from polyfed.algorithms.objectives.fmgda import FSMGDA
from polyfed.core.settings import settings


@algorithms("centralised")
@settings
class Centralised(FSMGDA):
    """Multiple gradient descent on pooled data: what federated methods are compared with. batch_size 0 is full."""

    pooled: ClassVar[bool] = True
    local_steps: Literal[1] = 1
    batch_size: Annotated[int, Field(ge=0)] = 0
