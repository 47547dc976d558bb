"""A transformers model whose prompts are read in FP8.

    python examples/transformers_prefill.py FOLDER "What is a mutex?"

FOLDER is what `from_pretrained` reads: a model with head dim 128, or DeepSeek's 192/128.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from zyfa_triton.integrations.transformers import register


def answer(folder: str, question: str, tokens: int = 64) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation=register("zyfa", precision="fp8")
    ).to("cuda" if torch.cuda.is_available() else "cpu")
    inputs = tokenizer(question, return_tensors="pt").to(model.device)
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    text: str = tokenizer.decode(output[0], skip_special_tokens=True)
    return text


if __name__ == "__main__":
    print(answer(sys.argv[1], sys.argv[2]))
