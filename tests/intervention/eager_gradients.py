"""What transformers' own eager attention says of a text: weights and their gradients, from no code of ours."""

import torch

TEXT = [7, 19, 33, 4, 51, 19, 28, 12, 40, 9, 33, 5]
TARGET = [3, 44, 17, 8, 26, 59, 31]


def given_to(model):
    given = {"input_ids": torch.tensor([TEXT])}
    return given | ({"decoder_input_ids": torch.tensor([TARGET])} if model.config.is_encoder_decoder else {})


def weights_and_gradients(model, of=lambda logits: logits.log_softmax(-1).amax(-1).sum()):
    """Lists over layers, in the order of the calls: kind, A and dy/dA, ``(head, query, key)`` each."""
    model.set_attn_implementation("eager")
    output = (
        model(**given_to(model), output_attentions=True, use_cache=False)
        if is_decoder(model)
        else model(**given_to(model), output_attentions=True)
    )
    if not model.config.is_encoder_decoder:
        kind = "causal" if is_decoder(model) else "self"
        found = [(kind, weights) for weights in output.attentions]
    else:
        found = [("self", weights) for weights in output.encoder_attentions]
        both = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        found += [pair for own, cross in both for pair in (("causal", own), ("cross", cross))]
    gradients = torch.autograd.grad(
        of(output.logits), [weights for _, weights in found], allow_unused=True, materialize_grads=True
    )
    return [
        (kind, weights[0].detach().double().numpy(), gradient[0].double().numpy())
        for (kind, weights), gradient in zip(found, gradients, strict=True)
    ]


def is_decoder(model):
    return type(model).__name__.endswith("CausalLM") or type(model).__name__.startswith("GPT2")
