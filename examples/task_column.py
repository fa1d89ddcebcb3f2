"""A DataFrame with the task in a column: a pipeline over MOCHA, searched by scikit-learn, and a task that joins later.

For your own: read your table into `table`, name its task column in `task=`, and put what is to be predicted into `y`.
"""

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from polyfed.tasks import MochaEstimator

# Twelve shops, 40 customers each: who comes back? Two kinds of shops, no shop quite like another.
rng = np.random.default_rng(0)
shop = rng.permutation(np.repeat(np.arange(12), 40))
x = rng.normal(size=(480, 10))
w = rng.normal(size=(2, 10))[shop % 2] + 0.2 * rng.normal(size=(12, 10))[shop]
table = pd.DataFrame(100 * x, columns=[f"spent on {i}" for i in range(10)]).assign(shop=[f"shop {s}" for s in shop])
y = np.where((x * w).sum(1) + 0.5 * rng.normal(size=480) > 0, "back", "gone")

late = (table["shop"] == "shop 11").to_numpy()  # opens when the others are fitted
train, test, y_train, y_test = train_test_split(table[~late], y[~late], stratify=shop[~late], random_state=0)
numbers = [name for name in table if name != "shop"]
scaled = make_column_transformer((StandardScaler(), numbers), ("passthrough", ["shop"]))  # the shop comes last
model = make_pipeline(scaled, MochaEstimator(task=-1, loss="logistic", tol=0.01))
search = GridSearchCV(model, {"mochaestimator__lam": [0.1, 1.0, 10.0]}, cv=3).fit(train, y_train)
one = make_pipeline(StandardScaler(), MochaEstimator(loss="logistic", tol=0.01)).fit(train[numbers], y_train)
print(f"MOCHA             {search.score(test, y_test):.2f}")
print(f"one model for all {one.score(test[numbers], y_test):.2f}")

prepare, mocha = search.best_estimator_
mocha.add_task(prepare.transform(table[late][:10]), y[late][:10])  # its first ten customers
print(f"the late shop     {search.score(table[late][10:], y[late][10:]):.2f}")
