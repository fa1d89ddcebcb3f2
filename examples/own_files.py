"""Pictures in folders, a folder for each client: torch Datasets that are read file by file, never held in memory.

For your own: change what `__getitem__` loads; it returns (x, target), and the target may be a dict by objective.
"""

from pathlib import Path
from tempfile import mkdtemp

import torch
from sklearn.datasets import load_digits

from polyfed import FedAvg, Federation, Objective, Problem, train

folder = Path(mkdtemp())
for i, (image, digit) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
    path = folder / f"writer-{i % 12:02}" / f"{i:04}-{digit}.pt"
    path.parent.mkdir(exist_ok=True)
    torch.save(torch.tensor(image / 16, dtype=torch.float32), path)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.pt"))
        self.labels = [int(path.stem.split("-")[1]) for path in self.paths]  # or all files would be read for them

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.load(self.paths[i]), self.labels[i]


clients = {path.name: Pictures(path) for path in sorted(folder.iterdir())}
federation = Federation.from_datasets(clients, targets="labels", test=0.2)
torch.manual_seed(0)
problem = Problem(torch.nn.Linear(64, 10), [Objective("digit", "cross-entropy")])
result = train(problem, federation, FedAvg(lr=0.3), rounds=20, cohort=6, seed=0)
right = result.summary["objectives"]["digit"]["accuracy"]
print(f"{len(federation)} writers, {federation.size} files: {right:.0%} right")
