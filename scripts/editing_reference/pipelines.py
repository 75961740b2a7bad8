"""Runs a case through the reference's pipelines, which process images as this program does."""

import numpy as np
import torch
from diffusers import Flux2KleinInpaintPipeline, Flux2KleinKVPipeline, Flux2KleinPipeline
from PIL import Image

from dump_reference import generator, pipeline_arguments

from .inputs import read

# What the reference takes where a mask is given and no strength; written out, for its default of guidance is another one too.
DEFAULT_STRENGTH = 0.8


class Inpaint(Flux2KleinInpaintPipeline):
    """The reference's pipeline with a list of references each of which is capped and cropped by itself.

    The reference takes a list as one batch and crops all to the size of the first. Its own steps are used here, one image at
    a time. With `self_reference` unset the image that is changed is not among them.
    """

    references = ()
    self_reference = True

    def prepare_image_latents(self, images, batch_size, generator, device, dtype):
        references = images[:1] * self.self_reference + [self.pixels(image) for image in self.references]
        if not references:
            channels = self.transformer.config.in_channels
            return torch.zeros(batch_size, 0, channels), torch.zeros(batch_size, 0, 4, dtype=torch.int64)
        return super().prepare_image_latents(references, batch_size, generator, device, dtype)

    def pixels(self, image):
        return reference_pixels(self, image)


def reference_pixels(pipe, image):
    """As `Flux2KleinPipeline` prepares a reference: [1, 3, height, width], -1 to 1."""
    pipe.image_processor.check_image_input(image)
    image = pipe.image_processor._resize_if_exceeds_area(image)
    width, height = (side // 16 * 16 for side in image.size)
    return pipe.image_processor.preprocess(image, height=height, width=width, resize_mode="crop")


class Models:
    """The pipelines of the random models, in float32."""

    def __init__(self, folder):
        self.folder, self.loaded = folder, {}

    def get(self, preset, kind):
        """A pipeline, loaded once, and the arguments that its calls need."""
        key = preset, kind
        if key not in self.loaded:
            self.loaded[key] = self.load(preset, kind)
        return self.loaded[key], pipeline_arguments(self.folder / preset)

    def load(self, preset, kind):
        pipe = kind.from_pretrained(self.folder / preset, dtype=torch.float32)
        pipe.set_progress_bar_config(disable=True)
        return pipe


def draw(models, case, files, seed):
    """The latents after each step, each [tokens, C], and the image as uint8 [height, width, 3]."""
    pipe, call = models.get(case.preset, kind_of(case))
    if case.loras:
        # Some adapters make the reference join query, key and value for good, and others would go unread after that.
        pipe = models.load(case.preset, kind_of(case))
    images = [read(files / "inputs" / name) for name in case.inputs]
    call |= dict(prompt=case.prompt, num_inference_steps=case.steps, generator=generator(seed))
    if not isinstance(pipe, Flux2KleinKVPipeline):
        # 1: no guidance. Distilled models have none.
        call["guidance_scale"] = case.guidance or 1.0
    if case.changes_an_image():
        pipe.references, pipe.self_reference = images[1:], case.self_reference
        strength = DEFAULT_STRENGTH if case.strength is None else case.strength
        # All white where there is no mask, so that nothing is kept.
        mask = Image.open(files / "inputs" / case.mask) if case.mask else Image.new("L", images[0].size, 255)
        call |= dict(image=images[0], mask_image=mask, strength=strength)
    else:
        call |= dict(image=images or None, width=case.width, height=case.height)
    return run(pipe, call, [(files / "adapters" / name, strength) for name, strength in case.loras])


def kind_of(case):
    if case.changes_an_image():
        return Inpaint
    return Flux2KleinKVPipeline if case.kv or case.preset == "kv" else Flux2KleinPipeline


def run(pipe, call, adapters):
    latents = []

    def keep_latents(pipe, step, timestep, tensors):
        latents.append(tensors["latents"][0].clone())
        return tensors

    for number, (file, _) in enumerate(adapters):
        pipe.load_lora_weights(str(file), adapter_name=str(number))
    if adapters:
        # Only the adapter that was loaded last is in use until all are named.
        names = [str(number) for number in range(len(adapters))]
        pipe.set_adapters(names, [strength for _, strength in adapters])
    image = pipe(callback_on_step_end=keep_latents, output_type="pil", **call).images[0]
    return latents, np.asarray(image)
