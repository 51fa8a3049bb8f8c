"""What is made of recorded traffic: references in hindsight, estimates, explanations, better parameters."""
