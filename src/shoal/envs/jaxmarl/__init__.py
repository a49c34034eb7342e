"""JaxMARL's environments as Shoal's, under the names `jaxmarl/NAME`; JaxMARL is imported when one is used."""
