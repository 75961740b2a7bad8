"""The stages between image files and latents: references as tokens, the transformer with them, cached keys, masks."""

import numpy as np
import torch
from diffusers import Flux2KleinKVPipeline, Flux2KleinPipeline
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu, retrieve_timesteps
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image

from dump_reference import generator, model_timestep

from .inputs import read
from .pipelines import Inpaint, reference_pixels

# The references of the evaluation: one wide, one high.
REFERENCES = ("even.png", "rotated.jpg")
PROMPT = "a cat on the moon"

MASKS = {"mask-soft.png": (96, 80), "mask-small.png": (96, 80), "mask-1-bit.png": (96, 80), "mask-rgb.png": (96, 80)}


def preset_tensors(models, preset, inputs):
    kind = Flux2KleinKVPipeline if preset == "kv" else Flux2KleinPipeline
    pipe, call = models.get(preset, kind)
    evaluation = Evaluation(pipe, call, inputs)
    tensors = evaluation.inputs()
    if preset != "kv":
        tensors["transformer.velocity"] = evaluation.velocity()
    return tensors


def kv_tensors(models, inputs):
    """The step that makes the cache, and one that uses it, on the inputs of `preset_tensors`."""
    pipe, call = models.get("kv", Flux2KleinKVPipeline)
    return Evaluation(pipe, call, inputs).cached()


class Evaluation:
    """The transformer once, at 96x64 pixels, at the second of four steps, from the noise of seed 0, with two references."""

    def __init__(self, pipe, call, inputs):
        self.pipe = pipe
        self.noise = randn_tensor((1, pipe.transformer.config.in_channels, 4, 6), generator=generator(0))
        pixels = [reference_pixels(pipe, read(inputs / name)) for name in REFERENCES]
        self.references, self.reference_ids = pipe.prepare_image_latents(pixels, 1, None, "cpu", torch.float32)
        self.txt, self.txt_ids = pipe.encode_prompt(prompt=PROMPT, **call)
        mu = compute_empirical_mu(24, 4)
        timesteps, _ = retrieve_timesteps(pipe.scheduler, 4, "cpu", sigmas=np.linspace(1, 0.25, 4), mu=mu)
        self.timestep = timesteps[1:2]

    def inputs(self):
        return {
            "references.tokens": self.references[0],
            "references.ids": self.reference_ids[0].int(),
            "transformer.img": self.pipe._pack_latents(self.noise)[0],
            "transformer.txt": self.txt[0],
            "transformer.timestep": model_timestep(self.timestep),
        }

    def call(self, img, ids, **rest):
        return self.pipe.transformer(
            hidden_states=img,
            timestep=self.timestep / 1000,
            encoder_hidden_states=self.txt,
            txt_ids=self.txt_ids,
            img_ids=ids,
            return_dict=False,
            **rest,
        )

    def target(self):
        return self.pipe._pack_latents(self.noise), self.pipe._prepare_latent_ids(self.noise)

    def velocity(self):
        img, ids = self.target()
        joined = torch.cat([img, self.references], 1), torch.cat([ids, self.reference_ids], 1)
        return self.call(*joined)[0][0, : img.shape[1]]

    def cached(self):
        img, ids = self.target()
        joined = torch.cat([self.references, img], 1), torch.cat([self.reference_ids, ids], 1)
        extracting, cache = self.call(*joined, kv_cache_mode="extract", num_ref_tokens=self.references.shape[1])
        cached = self.call(img, ids, kv_cache_mode="cached", kv_cache=cache)[0]
        tensors = {"kv.velocity_extracting": extracting[0], "kv.velocity_cached": cached[0]}
        # The last of each kind: what went wrong in a block before shows here.
        for name, layer in (("double_block_1", cache.get_double(1)), ("single_block_1", cache.get_single(1))):
            tensors |= {f"kv.{name}.k": layer.k_ref[0].flatten(1), f"kv.{name}.v": layer.v_ref[0].flatten(1)}
        return tensors


def mask_tensors(models, inputs):
    """The share of each 16x16 cell that is repainted, at 96x80 pixels."""
    pipe, _ = models.get("tiny", Inpaint)
    tensors = {}
    for name, (width, height) in MASKS.items():
        pixels = pipe.mask_processor.preprocess(Image.open(inputs / name), height=height, width=width)
        cells = pipe.prepare_mask_latents(pixels, 1, 1, height, width, torch.float32, "cpu")
        tensors[f"{name.removesuffix('.png')}.cells"] = cells[0, :, 0]
    return tensors
