"""Muon for the matrices inside blocks, AdamW for the rest; a bf16 working copy with f32 masters and their running mean.

Everything stays on the device at fixed addresses, so that a whole training step can be one CUDA graph.
"""

import math

import torch

MUON_MOMENTUM = 0.95
CLIP = 1.0  # norm of all gradients


def orthogonalize(gradient: torch.Tensor) -> torch.Tensor:
    """Nearest matrix with singular values near 1, of a batch, by five Newton-Schulz steps. Source: Muon (Jordan et al., 2024)."""
    x = gradient.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.float()


def parts(name: str, weight: torch.Tensor) -> list[torch.Tensor] | None:
    """The matrices that a fused weight stands for, as views; nothing for a weight that AdamW takes."""
    if weight.ndim == 4 and weight.shape[0] >= 16 and weight.shape[2] == 3:
        return [weight.flatten(1)]
    if weight.ndim != 2 or not ("blocks." in name or ".layers." in name):
        return None
    rows, columns = weight.shape
    if name.endswith("to_qkv_mlp_proj.weight"):
        mlp = (rows - 3 * columns) // 2
        return list(weight.split([columns, columns, columns, mlp, mlp], 0))
    if name.endswith("linear_in.weight"):
        return list(weight.split(rows // 2, 0))
    if "single_transformer_blocks" in name and name.endswith("to_out.weight"):
        return list(weight.split([rows, columns - rows], 1))
    return [weight]


class Optimizer:
    """Steps the given parameters by their `grad`, which must exist."""

    def __init__(self, named: list[tuple[str, torch.nn.Parameter]], muon_rate: float, adam_rate: float, decay: float, device: str):
        self.rate = torch.zeros((), device=device)  # of the rates below; set from outside, once the clock runs
        self.muon_rate, self.adam_rate, self.decay = muon_rate, adam_rate, decay
        self.groups: dict[tuple, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        rest = []
        for name, parameter in named:
            weights = parts(name, parameter.data)
            if weights is None:
                rest.append(parameter)
                continue
            for weight, gradient in zip(weights, parts(name, parameter.grad)):
                self.groups.setdefault(tuple(weight.shape), []).append((weight, gradient))
        self.momenta = {shape: torch.zeros(len(items), *shape, device=device) for shape, items in self.groups.items()}
        on_gpu = device.startswith("cuda")
        self.adam = torch.optim.AdamW(rest, lr=torch.tensor(adam_rate, device=device) if on_gpu else adam_rate, betas=(0.9, 0.98), eps=1e-8,
                                      weight_decay=0.0, fused=on_gpu, capturable=on_gpu)  # fmt: skip

    @torch.no_grad()
    def step(self) -> None:
        rate = self.rate * self.muon_rate
        for (rows, columns), items in self.groups.items():
            gradients, momentum = torch.stack([gradient for _, gradient in items]), self.momenta[rows, columns]
            momentum.lerp_(gradients, 1 - MUON_MOMENTUM)
            update = gradients.lerp(momentum, MUON_MOMENTUM)
            update = orthogonalize(update.mT).mT if rows > columns else orthogonalize(update)
            update = update * (rate * -math.sqrt(max(1.0, rows / columns)))
            weights = [weight for weight, _ in items]
            torch._foreach_mul_(weights, 1 - rate * self.decay)
            torch._foreach_add_(weights, list(update.unbind()))
        for group in self.adam.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].copy_(self.rate * self.adam_rate)
            else:
                group["lr"] = float(self.rate) * self.adam_rate
        self.adam.step()


class Trainer:
    """Models that compute in `dtype`; f32 masters are stepped, and `ema` follows them. `rates`: of Muon and of AdamW."""

    def __init__(
        self, models: dict[str, torch.nn.Module], dtype: torch.dtype, device: str, rates: tuple[float, float], ema: float, decay: float = 0.01
    ):
        named = [(f"{name}.{key}", parameter) for name, model in models.items() for key, parameter in model.named_parameters()]
        self.masters = [torch.nn.Parameter(parameter.detach().float().clone()) for _, parameter in named]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        for model in models.values():
            model.to(dtype)
        self.working = [parameter for model in models.values() for parameter in model.parameters()]
        for parameter in self.working:
            parameter.grad = torch.zeros_like(parameter)
        self.ema = [master.detach().clone() for master in self.masters]
        self.ema_decay = ema
        self.optimizer = Optimizer([(name, master) for (name, _), master in zip(named, self.masters)], *rates, decay, device)

    @torch.no_grad()
    def step(self) -> None:
        """One step by the gradients that were added up since the last one."""
        gradients = [master.grad for master in self.masters]
        torch._foreach_copy_(gradients, [parameter.grad for parameter in self.working])
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, (CLIP / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.step()
        torch._foreach_copy_(self.working, [master.data for master in self.masters])
        self.forget()
        torch._foreach_lerp_(self.ema, [master.data for master in self.masters], 1 - self.ema_decay)

    def forget(self) -> None:
        """The gradients that were added up are none."""
        torch._foreach_zero_([parameter.grad for parameter in self.working])

    @torch.no_grad()
    def use_mean(self) -> None:
        """The running mean becomes the models' weights, in f32."""
        for parameter, mean in zip(self.working, self.ema):
            parameter.grad = None  # of the dtype that was
            parameter.data = mean.clone()
