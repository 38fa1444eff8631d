export * from "./receipt.js";
export * from "./request.js";
export type * from "./types.js";
export { SpecError, validate } from "./validate.js";
export { schema } from "./schema.js";
