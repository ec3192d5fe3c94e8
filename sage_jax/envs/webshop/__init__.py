"""WebShop as text: pages, actions, search, goals and reward of the original on a catalogue that workers share."""

from sage_jax.envs.webshop.env import WebShopEnv, WebShopFactory

__all__ = ["WebShopEnv", "WebShopFactory"]
