"""Several machines: who belongs, how they meet, and how a model runs over them."""
