-- Resources that are being put into force; NULL when there is nothing to do.
ALTER TABLE containers ADD COLUMN wanted TEXT;
