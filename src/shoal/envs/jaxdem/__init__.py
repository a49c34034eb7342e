"""JaxDEM's environments as Shoal's, under the names `jaxdem/NAME`; JaxDEM is imported when one is used."""
